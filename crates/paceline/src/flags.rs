//! The settings that flags and environment variables give: a layer over the config file.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::{
    ArgMatches, Args, Command, FromArgMatches, builder::Resettable, error::ErrorKind,
    parser::ValueSource,
};

use crate::config::{RunConfig, names};

/// The settings that were given, and no others.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFlags(toml::Table);

impl RunFlags {
    /// Settings given as text, by their names in a config file.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self> {
        let known = names::<RunConfig>();
        let mut flags = RunFlags::default();
        for (name, value) in settings {
            if !known.contains(name) {
                bail!("there is no setting `{name}`");
            }
            let command = RunConfig::augment_args(Command::new("settings").no_binary_name(true));
            let command = command.mut_args(|arg| arg.env(Resettable::Reset));
            let parsed = command.try_get_matches_from([format!("--{name}={value}")]);
            match parsed.and_then(|matches| Self::from_arg_matches(&matches)) {
                Ok(given) => flags.0.extend(given.0),
                Err(error) => bail!("the setting {name} cannot be `{value}`: {}", cause(&error)),
            }
        }
        Ok(flags)
    }

    /// The same settings, with one more.
    pub(crate) fn with(mut self, name: &str, value: impl Into<toml::Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Lays other settings over these.
    pub(crate) fn extend(&mut self, over: &RunFlags) {
        self.0.extend(over.0.clone());
    }

    /// The given settings, as a config file has them.
    pub(crate) fn table(&self) -> &toml::Table {
        &self.0
    }

    /// The names of the given settings, but for `run-dir`, which may be a habit of the machine.
    pub(crate) fn given(&self) -> Vec<String> {
        self.0.keys().filter(|name| *name != "run-dir").cloned().collect()
    }

    /// The folder that holds the folders of all runs.
    pub(crate) fn run_dir(&self) -> String {
        let given = self.0.get("run-dir").and_then(toml::Value::as_str);
        given.map_or_else(|| RunConfig::default().record.run_dir, str::to_owned)
    }
}

/// What is wrong with a value, without the words around it.
fn cause(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    let cause = line.split_once("': ").map_or(line, |(_, cause)| cause);
    cause.trim_start_matches("error: ").to_owned()
}

impl FromArgMatches for RunFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let settings = RunConfig::from_arg_matches(matches)?;
        let table = toml::Table::try_from(settings)
            .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
        let given = |name: &str| {
            let source = matches.value_source(&name.replace('-', "_"));
            matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        Ok(RunFlags(table.into_iter().filter(|(name, _)| given(name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.extend(Self::from_arg_matches(matches)?.0);
        Ok(())
    }
}

impl Args for RunFlags {
    fn augment_args(command: Command) -> Command {
        RunConfig::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RunConfig::augment_args(command)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The flags of this command line.
    pub(crate) fn flags(line: &str) -> RunFlags {
        let command = RunFlags::augment_args(Command::new("paceline"));
        let words = std::iter::once("paceline").chain(line.split_whitespace());
        RunFlags::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    #[test]
    fn settings_that_are_not_given_are_not_in_the_layer() {
        let layer = flags("--batch 16 --rebalance --model mlp --time-limit 90 --workers 4");
        let given = layer.given();
        assert_eq!(given, ["batch", "model", "rebalance", "time-limit", "workers"]);
        assert!(flags("").given().is_empty());
        assert_eq!(flags("").run_dir(), "runs");
        assert_eq!(flags("--run-dir here").run_dir(), "here");
    }

    #[test]
    fn settings_are_read_from_text_and_named_if_they_are_wrong() {
        let read = |name: &str, value: &str| {
            let settings = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            RunFlags::read(&settings).map_err(|error| error.to_string())
        };
        let batch = read("batch", "16").unwrap();
        assert_eq!(batch.table().get("batch").unwrap().as_integer(), Some(16));
        assert_eq!(read("polciy", "full").unwrap_err(), "there is no setting `polciy`");
        let wrong = read("policy", "fastest").unwrap_err();
        assert!(wrong.starts_with("the setting policy cannot be `fastest`: unknown"), "{wrong}");
        let wrong = read("batch", "-1").unwrap_err();
        assert!(wrong.starts_with("the setting batch cannot be `-1`: -1 is not in"), "{wrong}");
    }
}
