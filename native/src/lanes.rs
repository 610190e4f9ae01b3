//! Threads that callers share fairly: free threads take the next call of each lane in turn, and no lane gets all threads.
//!
//! The threads are Python's, so that they have names and states of their own. A call is handed over without the interpreter:
//! the threads that serve connections never wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pyo3::prelude::*;

use crate::call::{self, Call};

type Name = Arc<str>;

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Call>,
    running: usize,
}

/// What an idle thread waits for.
#[derive(Default)]
struct Idle {
    given: Mutex<Option<Given>>,
    wake: Condvar,
}

enum Given {
    /// A call, and whether no other thread is idle, so that another one should be started.
    Call(Name, Call, bool),
    End,
}

/// What threads are given once the lock is released: they would wait for it otherwise.
type Gifts = Vec<(Arc<Idle>, Given)>;

#[derive(Default)]
struct Inner {
    lanes: HashMap<Name, Lane>,
    /// The lanes with waiting calls.
    turns: VecDeque<Name>,
    /// Calls whose turn it is, for threads that are about to start.
    ready: VecDeque<(Name, Call)>,
    idle: Vec<Arc<Idle>>,
    running: usize,
    started: usize,
    is_closed: bool,
}

/// Up to `threads` threads, of which a lane may use `per_lane`, while `waiting` more calls may wait in it.
///
/// `start_thread` starts a thread that calls `work`.
#[pyclass(frozen, module = "skiway_native")]
pub struct Lanes {
    inner: Mutex<Inner>,
    threads: usize,
    per_lane: usize,
    pub waiting: usize,
    start_thread: Py<PyAny>,
    serve: Py<PyAny>,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Run a call as soon as it is the turn of its lane. It comes back if too many calls of its lane wait.
    pub fn submit(&self, lane: &str, call: Call) -> Result<(), Call> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(call);
        }
        if !inner.lanes.contains_key(lane) {
            inner.lanes.insert(lane.into(), Lane::default());
        }
        let Some((name, _)) = inner.lanes.get_key_value(lane) else { return Err(call) };
        let name = name.clone();
        let Some(mine) = inner.lanes.get_mut(&name) else { return Err(call) };
        if mine.waiting.len() >= self.waiting {
            return Err(call);
        }
        mine.waiting.push_back(call);
        if mine.waiting.len() == 1 {
            inner.turns.push_back(name);
        }
        let gifts = self.start(&mut inner);
        drop(inner);
        give(gifts);
        Ok(())
    }

    /// Start calls while there are threads: one of each lane in turn.
    fn start(&self, inner: &mut Inner) -> Gifts {
        let mut gifts = Gifts::new();
        for _ in 0..inner.turns.len() {
            if inner.running >= self.threads {
                break;
            }
            let Some(name) = inner.turns.pop_front() else { break };
            let Some(lane) = inner.lanes.get_mut(&name) else { continue };
            if lane.running < self.per_lane {
                if let Some(call) = lane.waiting.pop_front() {
                    lane.running += 1;
                    inner.running += 1;
                    let has_more = !lane.waiting.is_empty();
                    if has_more {
                        inner.turns.push_back(name.clone());
                    }
                    match inner.idle.pop() {
                        Some(thread) => gifts.push((thread, Given::Call(name, call, self.is_scarce(inner)))),
                        None => inner.ready.push_back((name, call)),
                    }
                    continue;
                }
            }
            inner.turns.push_back(name);
        }
        gifts
    }

    /// Whether no thread is idle and there may be more.
    fn is_scarce(&self, inner: &Inner) -> bool {
        inner.idle.is_empty() && inner.started < self.threads && !inner.is_closed
    }

    /// A call has ended.
    fn ended(&self, name: &Name) {
        let mut inner = self.lock();
        inner.running -= 1;
        if let Some(lane) = inner.lanes.get_mut(name) {
            lane.running -= 1;
            if lane.running == 0 && lane.waiting.is_empty() {
                inner.lanes.remove(name);
            }
        }
        let gifts = self.start(&mut inner);
        drop(inner);
        give(gifts);
    }

    /// The next call of a thread, and whether another one should be started; None when it shall end.
    fn next(&self, idle: &Arc<Idle>) -> Option<(Name, Call, bool)> {
        {
            let mut inner = self.lock();
            if let Some((name, call)) = inner.ready.pop_front() {
                return Some((name, call, self.is_scarce(&inner)));
            }
            if inner.is_closed {
                return None;
            }
            inner.idle.push(idle.clone());
        }
        let mut given = idle.given.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            match given.take() {
                Some(Given::Call(name, call, is_scarce)) => return Some((name, call, is_scarce)),
                Some(Given::End) => return None,
                None => given = idle.wake.wait(given).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        }
    }

    /// Start another thread if no one is left to take the next call.
    fn grow(&self, py: Python<'_>) {
        {
            let mut inner = self.lock();
            if !self.is_scarce(&inner) {
                return;
            }
            inner.started += 1;
        }
        if let Err(error) = self.start_thread.call0(py) {
            self.lock().started -= 1; // the next call tries again
            error.write_unraisable(py, None);
        }
    }

}

fn give(gifts: Gifts) {
    for (thread, given) in gifts {
        *thread.given.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(given);
        thread.wake.notify_one();
    }
}

#[pymethods]
impl Lanes {
    #[new]
    fn new(threads: usize, per_lane: usize, waiting: usize, start_thread: Py<PyAny>, serve: Py<PyAny>) -> Lanes {
        Lanes { inner: Mutex::default(), threads, per_lane, waiting, start_thread, serve }
    }

    /// Start the first thread.
    fn open(&self, py: Python<'_>) {
        self.grow(py);
    }

    /// End the threads, once no calls run.
    fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        give(inner.idle.drain(..).map(|thread| (thread, Given::End)).collect());
    }

    /// Run calls until the server ends.
    fn work(&self, py: Python<'_>) {
        let idle = Arc::new(Idle::default());
        while let Some((name, call, is_scarce)) = py.detach(|| self.next(&idle)) {
            if is_scarce {
                self.grow(py);
            }
            let shared = call.shared.clone();
            if !shared.is_active() {
                self.ended(&name); // nobody waits for it any more
                continue;
            }
            if let Err(error) = self.serve.call1(py, (call,)) {
                error.write_unraisable(py, None);
                shared.end(crate::metadata::status(call::INTERNAL, "the server failed: see its log"));
            }
            self.ended(&name);
        }
    }
}
