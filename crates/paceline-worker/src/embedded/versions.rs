//! The versions that wait for the user's loop.

use std::collections::VecDeque;

use paceline_core::Version;
use paceline_shm::Kept;

/// Memory for versions that wait for the user's loop: 4 at least, 64 at most. A loop that missed more takes
/// the state of another worker.
const WAITING_BYTES: usize = 256 << 20;

/// Versions that were loaded and not taken, and the one that is being loaded.
#[derive(Default)]
pub(super) struct Versions {
    /// Whether versions are means, none of which may be skipped.
    keeps_all: bool,
    /// Versions that may wait.
    most_waiting: usize,
    /// Values of the version that is being loaded.
    filling: Option<Values>,
    /// Versions that the user's loop has not taken, oldest first.
    waiting: VecDeque<Loaded>,
    newest: Version,
    /// Whether any version was loaded. The first task's is, where versions are parameters.
    has_loaded: bool,
    taken: Version,
    /// A buffer to load the next version in.
    spare: Vec<f32>,
}

struct Loaded {
    version: Version,
    values: Values,
}

enum Values {
    Own(Vec<f32>),
    Kept(Kept),
}

impl Versions {
    /// The user's loop begins with `version`. If `keeps_all`, it takes every later one, of `elements` values
    /// each.
    pub(super) fn begin(&mut self, version: Version, keeps_all: bool, elements: usize) {
        let bytes = elements.max(1) * size_of::<f32>();
        (self.keeps_all, self.most_waiting) = (keeps_all, (WAITING_BYTES / bytes).clamp(4, 64));
        (self.taken, self.newest) = (version, version);
    }

    /// The user's loop has the state of this version now. Older versions need not be taken.
    pub(super) fn restore(&mut self, version: Version) {
        self.taken = version;
        self.waiting.retain(|loaded| loaded.version > version);
        // Versions between the state and the ones that wait are pulled again.
        if self.first().is_none_or(|first| first > version.next()) {
            self.waiting.clear();
            self.newest = version;
        }
    }

    /// The oldest version that waits.
    pub(super) fn first(&self) -> Option<Version> {
        self.waiting.front().map(|loaded| loaded.version)
    }

    /// The newest version that was loaded.
    pub(super) fn newest(&self) -> Version {
        self.newest
    }

    /// The version that the user's loop took last.
    pub(super) fn taken(&self) -> Version {
        self.taken
    }

    /// Takes the oldest version that waits. `read` sees its values.
    pub(super) fn take<T>(&mut self, read: impl FnOnce(Version, &[f32]) -> T) -> Option<T> {
        let Loaded { version, values } = self.waiting.pop_front()?;
        self.taken = version;
        let read = match &values {
            Values::Own(values) => read(version, values),
            Values::Kept(values) => read(version, values),
        };
        if let Values::Own(values) = values {
            self.spare = values;
        }
        Some(read)
    }

    /// The last version loaded, if every version must be loaded in order.
    pub(super) fn follows(&self) -> Option<Version> {
        (self.keeps_all || self.has_loaded).then_some(self.newest)
    }

    /// Takes the values that were loaded of the next version so far, or a buffer for them.
    pub(super) fn take_filling(&mut self) -> Vec<f32> {
        match self.filling.take() {
            Some(Values::Own(filling)) => filling,
            _ => std::mem::take(&mut self.spare),
        }
    }

    /// The values that are loaded of the next version.
    pub(super) fn fill(&mut self, values: Vec<f32>) {
        self.filling = Some(Values::Own(values));
    }

    /// All values of the next version, in place.
    pub(super) fn keep(&mut self, values: Kept) {
        self.filling = Some(Values::Kept(values));
    }

    /// Copies the values that are in place: their memory is needed.
    pub(super) fn let_go(&mut self) {
        let mut spare = std::mem::take(&mut self.spare);
        for Loaded { values, .. } in &mut self.waiting {
            if let Values::Kept(kept) = values {
                spare.clear();
                spare.extend_from_slice(kept);
                *values = Values::Own(std::mem::take(&mut spare));
            }
        }
        self.spare = spare;
    }

    /// All values of this version are loaded. Returns whether it now waits.
    pub(super) fn loaded(&mut self, version: Version) -> bool {
        let Some(values) = self.filling.take() else { return false };
        (self.newest, self.has_loaded) = (self.newest.max(version), true);
        if self.keeps_all && version <= self.taken {
            // The state was restored meanwhile, and has this version.
            return false;
        }
        if !self.keeps_all || self.waiting.len() >= self.most_waiting {
            self.waiting.clear();
        }
        self.waiting.push_back(Loaded { version, values });
        true
    }
}
