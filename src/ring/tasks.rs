//! The shard's run queue: spawns connection tasks and runs the ready ones inside the driver. Floor 3.
//!
//! Not a general executor: it has no sleep of its own. The driver runs it between two looks into the
//! ring. Tasks stay on their thread; their wakers may go anywhere. A wake on the shard's own thread is
//! a push to a thread-local queue (no lock); a wake from another thread goes through a mutex and rings
//! the shard's doorbell.

use super::doorbell::Doorbell;
use async_task::Runnable;
use pin_project_lite::pin_project;
use slab::Slab;
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

thread_local! {
    /// The queue of the shard that runs on this thread, if one does.
    static READY: Ready = const {
        Ready {
            owner: Cell::new(0),
            queue: RefCell::new(VecDeque::new()),
            driver: RefCell::new(None),
            live: RefCell::new(Slab::new()),
            panics: Cell::new(0),
        }
    };
}

struct Ready {
    /// Address of the owning [`Remote`], 0 for none: tells a local wake from a foreign one.
    owner: Cell<usize>,
    queue: RefCell<VecDeque<Runnable>>,
    /// The driver's waker while it is parked; taken by the first wake.
    driver: RefCell<Option<Waker>>,
    /// A waker of every unfinished task, so that all can be dropped at the end.
    live: RefCell<Slab<Option<Waker>>>,
    /// Panics that escaped a task.
    panics: Cell<u64>,
}

/// What wakers on other threads reach.
struct Remote {
    queue: Mutex<VecDeque<Runnable>>,
    doorbell: Doorbell,
}

/// Spawns and runs the tasks of one shard.
pub(super) struct Tasks {
    remote: Arc<Remote>,
    /// What is its own is its thread's: it must not leave it.
    thread: PhantomData<*const ()>,
}

impl Tasks {
    /// # Panics
    /// If this thread already runs a shard.
    pub(super) fn new(doorbell: Doorbell) -> Self {
        let remote = Arc::new(Remote { queue: Mutex::default(), doorbell });
        READY.with(|ready| {
            assert_eq!(ready.owner.get(), 0, "one shard a thread");
            ready.owner.set(Arc::as_ptr(&remote).addr());
            ready.panics.set(0);
        });
        Tasks { remote, thread: PhantomData }
    }

    /// Queues `future`. It is dropped at the shard's end if it has not finished by then.
    pub(super) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let index = READY.with(|ready| ready.live.borrow_mut().insert(None));
        let tracked = Tracked { future: Some(future), entry: Entry(index) };
        let remote = self.remote.clone();
        let schedule = move |runnable: Runnable| {
            READY.with(|ready| {
                if ready.owner.get() == Arc::as_ptr(&remote).addr() {
                    ready.queue.borrow_mut().push_back(runnable);
                    wake_driver(ready);
                } else {
                    remote.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(runnable);
                    remote.doorbell.ring();
                }
            });
        };
        let (runnable, task) = async_task::spawn_local(tracked, schedule);
        READY.with(|ready| ready.live.borrow_mut()[index] = Some(runnable.waker()));
        runnable.schedule();
        task.detach();
    }

    /// Takes in what other threads woke. Called when the doorbell rang.
    pub(super) fn take_remote(&self) {
        let mut remote = self.remote.queue.lock().unwrap_or_else(PoisonError::into_inner);
        READY.with(|ready| ready.queue.borrow_mut().append(&mut remote));
    }

    /// Runs at most `max` ready tasks; says how many it ran. A panic that escapes a task (its
    /// destructors included) ends that task alone and is counted.
    pub(super) fn run(&self, max: usize) -> usize {
        for ran in 0..max {
            let Some(runnable) = READY.with(|ready| ready.queue.borrow_mut().pop_front()) else { return ran };
            if catch_unwind(AssertUnwindSafe(|| runnable.run())).is_err() {
                count_panic();
            }
        }
        max
    }

    pub(super) fn has_ready(&self) -> bool {
        READY.with(|ready| !ready.queue.borrow().is_empty())
    }

    pub(super) fn panics(&self) -> u64 {
        READY.with(|ready| ready.panics.get())
    }

    /// Registers the driver to be woken by the next local wake or queued operation.
    pub(super) fn park(&self, driver: &Waker) {
        READY.with(|ready| ready.driver.borrow_mut().replace(driver.clone()));
    }

    /// Whether no wake has come since [`Tasks::park`].
    pub(super) fn is_parked(&self) -> bool {
        READY.with(|ready| ready.driver.borrow().is_some())
    }

    pub(super) fn unpark(&self) {
        READY.with(|ready| ready.driver.borrow_mut().take());
    }

    /// Drops every task, running none. Destructors run here, inside the driver.
    pub(super) fn drop_all(&self) {
        loop {
            let wakers: Vec<Waker> =
                READY.with(|ready| ready.live.borrow().iter().filter_map(|(_, waker)| waker.clone()).collect());
            wakers.into_iter().for_each(Waker::wake);
            self.take_remote();
            let doomed = READY.with(|ready| std::mem::take(&mut *ready.queue.borrow_mut()));
            if doomed.is_empty() {
                return;
            }
            drop(doomed); // a destructor that panics is caught by `Tracked`
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.drop_all();
        READY.with(|ready| ready.owner.set(0));
    }
}

/// Wakes the parked driver of the shard on this thread, if it is parked. Called by whoever queues work for it.
pub(super) fn wake_parked_driver() {
    READY.with(wake_driver);
}

fn wake_driver(ready: &Ready) {
    let driver = ready.driver.borrow_mut().take();
    if let Some(driver) = driver {
        driver.wake();
    }
}

fn count_panic() {
    READY.with(|ready| ready.panics.set(ready.panics.get() + 1));
}

/// The task's place in [`Ready::live`]; given back when the task's future is dropped, which is on its shard's thread.
struct Entry(usize);

impl Drop for Entry {
    fn drop(&mut self) {
        let waker = READY.with(|ready| ready.live.borrow_mut().remove(self.0));
        drop(waker); // outside the borrow: it may be the last reference to the task
    }
}

pin_project! {
    struct Tracked<F> {
        #[pin]
        future: Option<F>,
        entry: Entry,
    }

    impl<F> PinnedDrop for Tracked<F> {
        /// async-task aborts the process when a future that it drops panics: so none does.
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if catch_unwind(AssertUnwindSafe(|| this.future.set(None))).is_err() {
                count_panic();
            }
        }
    }
}

impl<F: Future<Output = ()>> Future for Tracked<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().future.as_pin_mut().expect("taken only when dropped").poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future;
    use std::{rc::Rc, sync::mpsc, thread};

    fn live() -> usize {
        READY.with(|ready| ready.live.borrow().len())
    }

    fn tasks() -> Tasks {
        Tasks::new(Doorbell::new().unwrap())
    }

    #[test]
    fn task_woken_locally_runs_again() {
        let tasks = tasks();
        let polls = Rc::new(Cell::new(0));
        let counted = polls.clone();
        tasks.spawn(async move {
            for _ in 0..3 {
                counted.set(counted.get() + 1);
                future::yield_now().await;
            }
        });
        assert_eq!(tasks.run(100), 4);
        assert_eq!(polls.get(), 3);
        assert!(!tasks.has_ready());
        assert!(live() == 0);
    }

    #[test]
    fn run_is_bounded() {
        let tasks = tasks();
        for _ in 0..5 {
            tasks.spawn(async {});
        }
        assert_eq!(tasks.run(3), 3);
        assert!(tasks.has_ready());
        assert_eq!(tasks.run(3), 2);
    }

    #[test]
    fn task_woken_by_another_thread_rings_the_doorbell() {
        let tasks = tasks();
        let (send, receive) = mpsc::channel();
        let mut first = true;
        tasks.spawn(future::poll_fn(move |cx| {
            if std::mem::take(&mut first) {
                send.send(cx.waker().clone()).unwrap();
                return Poll::Pending;
            }
            Poll::Ready(())
        }));
        tasks.run(10);
        let waker = receive.recv().unwrap();
        thread::spawn(move || waker.wake()).join().unwrap();
        assert!(!tasks.has_ready());
        assert_eq!(tasks.remote.doorbell.take(), 1);
        tasks.take_remote();
        assert_eq!(tasks.run(10), 1);
        assert!(live() == 0);
    }

    #[test]
    fn panic_in_task_and_in_its_destructor_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        let tasks = tasks();
        tasks.spawn(async { panic!("in a task") });
        tasks.spawn(async {
            let _bomb = Bomb;
        });
        let ran = Rc::new(Cell::new(false));
        let flag = ran.clone();
        tasks.spawn(async move { flag.set(true) });
        assert_eq!(tasks.run(10), 3);
        assert_eq!(tasks.panics(), 2);
        assert!(ran.get());
    }

    #[test]
    fn drop_all_drops_pending_tasks_and_what_their_destructors_spawn() {
        let tasks = Rc::new(tasks());
        let held = Rc::new(());
        for _ in 0..3 {
            let held = held.clone();
            tasks.spawn(async move {
                let _held = held;
                future::pending::<()>().await;
            });
        }
        tasks.run(10);
        assert_eq!(Rc::strong_count(&held), 4);
        tasks.drop_all();
        assert_eq!(Rc::strong_count(&held), 1);
        assert!(live() == 0);
    }

    #[test]
    fn destructor_that_panics_at_the_end_is_contained() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in a destructor");
            }
        }
        let tasks = tasks();
        for _ in 0..2 {
            let bomb = Bomb;
            tasks.spawn(async move {
                let _bomb = bomb;
                future::pending::<()>().await;
            });
        }
        tasks.run(1); // the other one is never polled
        tasks.drop_all();
        assert!(live() == 0);
        assert_eq!(tasks.panics(), 2);
    }

    #[test]
    fn wake_of_a_task_wakes_the_parked_driver_once() {
        let tasks = tasks();
        let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        struct Count(Arc<std::sync::atomic::AtomicUsize>);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        tasks.park(&Waker::from(Arc::new(Count(woken.clone()))));
        tasks.spawn(async {});
        tasks.spawn(async {});
        assert_eq!(woken.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
