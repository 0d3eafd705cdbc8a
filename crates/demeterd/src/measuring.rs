// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host has allocated for guests is asked of the system, file by file, and a
//! file may be served by a program that does not answer (FUSE). Nobody but the thread
//! that asks waits for that longer than a second, and each such machine keeps one thread
//! at most, and one of the policy: a scrape never waits for a decision, nor a decision for
//! a scrape.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::vm::{Asker, MEASURING_LIMIT, Vm};

/// One at a time, so that whoever asks sees what is true after it asked.
pub struct Measuring {
    asker: Asker,
    turn: Mutex<()>,
}

impl Measuring {
    /// For these.
    pub fn new(asker: Asker) -> Self {
        Self {
            asker,
            turn: Mutex::default(),
        }
    }

    /// Measures all of these that answer.
    pub async fn measure(&self, vms: &[Arc<Vm>]) {
        let asker = self.asker;
        self.measure_by(vms, move |vm| vm.measure(asker)).await;
    }

    async fn measure_by(&self, vms: &[Arc<Vm>], ask: impl Fn(&Vm) + Clone + Send + 'static) {
        let _turn = self.turn.lock().await;
        let mut left: Vec<Arc<Vm>> = (vms.iter())
            .filter(|vm| !vm.is_unmeasured())
            .cloned()
            .collect();
        // All are asked before anybody's answer is waited for.
        left.iter().for_each(|vm| vm.look());
        let asked = left.clone();
        // It ends after a second, whoever is still waited for.
        let heard = tokio::task::spawn_blocking(move || {
            asked.iter().for_each(|vm| vm.wait_look());
        });
        let _ = heard.await;
        while !left.is_empty() {
            let (measured, given_up) = (Arc::new(AtomicUsize::new(0)), Arc::default());
            let (now, done, over) = (left.clone(), measured.clone(), Arc::clone(&given_up));
            let ask = ask.clone();
            let asking = tokio::task::spawn_blocking(move || {
                for vm in now {
                    if AtomicBool::load(&over, Ordering::Relaxed) {
                        return;
                    }
                    ask(&vm);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            // Also when whoever asked goes away in between: no thread begins another file for it.
            let _guard = GiveUp(&given_up);
            if timeout(MEASURING_LIMIT, asking).await.is_ok() {
                return;
            }
            // The one that does not answer; others are measured without it.
            let measured = measured.load(Ordering::Relaxed);
            left.drain(..(measured + 1).min(left.len()));
        }
    }
}

/// Tells the thread that nobody waits for it any more.
struct GiveUp<'a>(&'a AtomicBool);

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    use crate::pair::driven;

    /// Measures; the machine `stuck` answers when it is told to.
    fn ask(
        stuck: &'static str,
        release: Receiver<()>,
        entered: Sender<()>,
    ) -> impl Fn(&Vm) + Clone + Send {
        let release = Arc::new(std::sync::Mutex::new(release));
        move |vm| {
            vm.measure_by(Asker::Views, |files, node| {
                if vm.spec.name == stuck {
                    entered.send(()).unwrap();
                    let _ = release.lock().unwrap().recv();
                }
                files.allocated(node)
            });
        }
    }

    #[tokio::test]
    async fn one_file_that_does_not_answer_holds_up_nobody_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let vms: Vec<Arc<Vm>> = (["a", "b", "c"].iter())
            .map(|name| driven(directory.path(), name).vm)
            .collect();
        let backing = |at: usize| vms[at].view().tiers[0].backing_bytes;
        let measuring = Measuring::new(Asker::Views);
        measuring.measure(&vms).await;
        assert!((0..3).all(|at| backing(at).is_some()));
        let (go, release) = channel();
        let (entered, entries) = channel();
        let ask = ask("b", release, entered);
        let began = Instant::now();
        measuring.measure_by(&vms, ask.clone()).await;
        assert!(began.elapsed() < 3 * MEASURING_LIMIT);
        assert!(backing(0).is_some() && backing(2).is_some());
        assert_eq!(backing(1), None, "nobody knows");
        assert!(vms[1].view().problem.unwrap().contains("does not answer"));
        // From then on nobody waits for it, and no second thread does.
        let began = Instant::now();
        measuring.measure_by(&vms, ask).await;
        assert!(began.elapsed() < MEASURING_LIMIT / 2);
        assert_eq!(entries.try_iter().count(), 1);
        go.send(()).unwrap();
        let limit = Instant::now() + Duration::from_secs(60);
        while vms[1].is_unmeasured() {
            assert!(Instant::now() < limit);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(vms[1].view().problem, None);
        assert!(backing(1).is_some());
    }

    #[tokio::test]
    async fn a_scrape_does_not_wait_for_a_decision_that_waits_for_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let vms = vec![driven(directory.path(), "a").vm];
        let (deciding, scraping) = (
            Measuring::new(Asker::Decisions),
            Measuring::new(Asker::Views),
        );
        let (go, release) = channel::<()>();
        let release = Arc::new(std::sync::Mutex::new(release));
        let (entered, entries) = channel();
        let stuck = deciding.measure_by(&vms, move |vm| {
            vm.measure_by(Asker::Decisions, |_, _| {
                entered.send(()).unwrap();
                let _ = release.lock().unwrap().recv();
                None
            });
        });
        let scrape = async {
            while entries.try_recv().is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            scraping.measure(&vms).await;
        };
        tokio::select! {
            biased;
            () = stuck => panic!("the scrape has waited until the decision gave up"),
            () = scrape => {}
        }
        assert!(vms[0].view().tiers[0].backing_bytes.is_some());
        drop(go);
    }

    /// Whoever asks may go away before there is an answer, as clients of the control
    /// interface do.
    #[tokio::test]
    async fn those_who_go_away_leave_one_thread_and_not_more() {
        let directory = tempfile::tempdir().unwrap();
        let vms = vec![driven(directory.path(), "b").vm];
        let measuring = Measuring::new(Asker::Views);
        let (go, release) = channel();
        let (entered, entries) = channel();
        let ask = ask("b", release, entered);
        let ask_and_go = || {
            let asked = measuring.measure_by(&vms, ask.clone());
            timeout(Duration::from_millis(100), asked)
        };
        // However late a busy machine starts the thread.
        while entries.try_recv().is_err() {
            let _ = ask_and_go().await;
        }
        for _ in 0..4 {
            let _ = ask_and_go().await;
        }
        assert_eq!(entries.try_iter().count(), 0);
        drop(go);
    }
}
