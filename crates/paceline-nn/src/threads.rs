//! One thread per worker process.

/// Gives the process's global rayon pool one thread.
///
/// The models here start no threads; this is for libraries beside them in a worker process, because
/// two workers of one thread each are faster than one worker of two. Call it before such a library
/// is used. A second call, or one after the pool has started, changes nothing; the answer is whether
/// the pool has one thread now.
pub fn single_threaded() -> bool {
    let _ = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
    rayon::current_num_threads() == 1
}

#[cfg(test)]
mod tests {
    #[test]
    fn may_be_called_twice() {
        assert!(super::single_threaded());
        assert!(super::single_threaded());
    }
}
