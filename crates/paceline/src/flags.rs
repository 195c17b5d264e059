//! The settings that flags and environment variables give: a layer over the config file.

use clap::{ArgMatches, Args, Command, FromArgMatches, error::ErrorKind, parser::ValueSource};

use crate::config::RunConfig;

/// The settings that were given, and no others.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFlags(toml::Table);

impl RunFlags {
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
}
