//! One call: what Python reads from it and sends to it, and the response that hyper takes from it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::HeaderMap;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString, PyTuple};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Sleep;

use crate::messages::{Broken, Reader, PREFIX};
use crate::metadata::{self, Value};
use crate::server::State;

/// A message up to this size is copied; a larger one is sent from the memory of the Python object.
const COPIED: usize = 32 * 1024;
/// How many bytes of a response may wait for the client to read them, before the sender waits.
const READ_AHEAD: usize = 1024 * 1024;
/// The beginning of a response waits this long for its end, so that a short response is one write with its status.
const HOLD: Duration = Duration::from_millis(2);
/// A response with more bytes begins at once.
const SHORT: usize = 16 * 1024;

pub const CANCELLED: u32 = 1;
pub const DEADLINE_EXCEEDED: u32 = 4;
pub const RESOURCE_EXHAUSTED: u32 = 8;
pub const INTERNAL: u32 = 13;
pub const UNAVAILABLE: u32 = 14;

#[derive(Clone, Debug)]
pub enum Peer {
    Ip(SocketAddr),
    Unix,
}

/// The part of a call that its response, its handler and the server share.
pub struct Shared {
    inner: Mutex<Inner>,
    room: Condvar,
    /// Wakes a handler that waits for a message.
    pub over: Notify,
    pub deadline: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    initial: Option<HeaderMap>,
    queue: VecDeque<Bytes>,
    queued: usize,
    trailers: Option<HeaderMap>,
    /// The response has begun: the headers were given to hyper.
    has_begun: bool,
    /// The response may wait for its end: its client has sent all it will, so nothing depends on when it begins.
    may_wait: bool,
    /// It has begun to wait.
    is_held: bool,
    /// Nobody reads the response any more, or it is complete.
    is_over: bool,
    waker: Option<Waker>,
    /// The sender waits for room: to notify nobody takes a call of the kernel, too.
    waits: bool,
    callbacks: Vec<Py<PyAny>>,
}

impl Inner {
    /// Let the response begin, if it waits for its end.
    fn begin_now(&mut self) {
        (self.may_wait, self.is_held) = (false, false);
        self.wake();
    }

    /// Let the sender go on. It holds the lock when it begins to wait, so it misses nothing.
    fn make_room(&mut self, room: &Condvar) {
        if std::mem::take(&mut self.waits) {
            room.notify_all();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Shared {
    pub fn new(deadline: Option<Instant>, may_wait: bool) -> Shared {
        let inner = Inner { may_wait, ..Inner::default() };
        Shared { inner: Mutex::new(inner), room: Condvar::new(), over: Notify::new(), deadline }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// End the call with a status, unless it has one: the handler finds out when it reads or sends.
    pub fn end(&self, trailers: HeaderMap) -> bool {
        let mut inner = self.lock();
        if inner.is_over || inner.trailers.is_some() {
            return false;
        }
        inner.trailers = Some(trailers);
        inner.wake();
        inner.make_room(&self.room);
        drop(inner);
        self.over.notify_waiters();
        true
    }

    /// End the call and throw away what the client has not read.
    pub fn cut(&self, trailers: HeaderMap) -> bool {
        let mut inner = self.lock();
        let ends = !inner.is_over && inner.trailers.is_none();
        if ends {
            inner.trailers = Some(trailers);
            inner.queue.clear();
            inner.queued = 0;
            inner.wake();
            inner.make_room(&self.room);
        }
        drop(inner);
        self.over.notify_waiters();
        ends
    }

    pub fn is_active(&self) -> bool {
        let inner = self.lock();
        !inner.is_over && inner.trailers.is_none()
    }

    fn poll_begin(&self, context: &mut Context<'_>) -> Poll<HeaderMap> {
        let mut inner = self.lock();
        let is_empty = inner.queue.is_empty() && inner.initial.is_none();
        if inner.trailers.is_none() && (is_empty || inner.is_held) {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        inner.has_begun = true;
        inner.may_wait = false;
        let mut headers = inner.initial.take().unwrap_or_default();
        if inner.queue.is_empty() && headers.is_empty() {
            if let Some(trailers) = inner.trailers.take() {
                // a response of headers only
                headers = trailers;
                inner.is_over = true;
            }
        }
        Poll::Ready(headers)
    }

    /// The headers of the response, once there is something to send; by the deadline at the latest.
    pub async fn begin(&self) -> HeaderMap {
        let begun = std::future::poll_fn(|context| self.poll_begin(context));
        let Some(deadline) = self.deadline else { return begun.await };
        match tokio::time::timeout_at(deadline.into(), begun).await {
            Ok(headers) => headers,
            Err(_) => {
                self.cut(metadata::status(DEADLINE_EXCEEDED, "Deadline Exceeded"));
                std::future::poll_fn(|context| self.poll_begin(context)).await
            }
        }
    }
}

/// The responses that wait for their end. A thread lets them begin after a while.
///
/// A timer of each call would wake the threads that serve connections.
#[derive(Default)]
pub struct Held {
    waiting: Mutex<(VecDeque<(Instant, Weak<Shared>)>, bool)>,
    added: Condvar,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<(Instant, Weak<Shared>)>, bool)> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, shared: &Arc<Shared>) {
        let mut inner = self.lock();
        if inner.0.is_empty() {
            self.added.notify_one();
        }
        inner.0.push_back((Instant::now() + HOLD, Arc::downgrade(shared)));
    }

    /// Let responses begin until the server ends.
    pub fn run(&self) {
        let mut inner = self.lock();
        while !inner.1 {
            let left = inner.0.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
            inner = match left {
                None => self.added.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(Duration::ZERO) => {
                    let due = inner.0.pop_front().and_then(|(_, shared)| shared.upgrade());
                    drop(inner);
                    if let Some(shared) = due {
                        shared.lock().begin_now();
                    }
                    self.lock()
                }
                Some(left) => {
                    self.added.wait_timeout(inner, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
    }

    pub fn close(&self) {
        self.lock().1 = true;
        self.added.notify_all();
    }
}

/// Tells the call when hyper has done with it, in whatever way. It is part of the future of the response, then of its body.
pub struct Guard {
    pub shared: Arc<Shared>,
    pub server: Arc<State>,
    pub number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.is_over = true;
        inner.queue.clear();
        inner.queued = 0;
        inner.waker = None;
        let callbacks = std::mem::take(&mut inner.callbacks);
        inner.make_room(&self.shared.room);
        drop(inner);
        self.shared.over.notify_waiters();
        self.server.left(self.number, callbacks);
    }
}

/// The body of a response: the messages, then the trailers.
pub struct Response {
    guard: Option<Guard>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Response {
    pub fn empty() -> Response {
        Response { guard: None, alarm: None }
    }

    pub fn of(guard: Guard) -> Response {
        let is_over = guard.shared.lock().is_over;
        if is_over {
            return Response::empty();
        }
        let alarm = guard.shared.deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline.into())));
        Response { guard: Some(guard), alarm }
    }
}

impl Body for Response {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(alarm) = self.alarm.as_mut() {
            if alarm.as_mut().poll(context).is_ready() {
                self.alarm = None;
                if let Some(guard) = &self.guard {
                    guard.shared.cut(metadata::status(DEADLINE_EXCEEDED, "Deadline Exceeded"));
                }
            }
        }
        let Some(guard) = &self.guard else { return Poll::Ready(None) };
        let mut inner = guard.shared.lock();
        if let Some(chunk) = inner.queue.pop_front() {
            let was_full = inner.queued > READ_AHEAD;
            inner.queued -= chunk.len();
            if was_full && inner.queued <= READ_AHEAD {
                inner.make_room(&guard.shared.room);
            }
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(trailers) = inner.trailers.take() {
            inner.is_over = true;
            drop(inner);
            self.guard = None;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.guard.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

use std::future::Future;

/// A call, as its handler sees it.
#[pyclass(frozen, module = "skiway_native")]
pub struct Call {
    pub shared: Arc<Shared>,
    pub path: String,
    pub headers: HeaderMap,
    pub peer: Peer,
    pub reader: Mutex<Option<Reader>>,
    pub runtime: Handle,
    pub held: Arc<Held>,
}

impl Call {
    fn reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next(&self) -> Result<Option<Bytes>, Broken> {
        let Some(mut reader) = self.reader().take() else { return Err(Broken::Gone) };
        let mut over = std::pin::pin!(self.shared.over.notified());
        over.as_mut().enable();
        if !self.shared.is_active() {
            return Err(Broken::Gone);
        }
        let mut next = std::pin::pin!(std::future::poll_fn(|context| {
            if let Poll::Ready(found) = reader.poll_next(context) {
                return Poll::Ready(found);
            }
            over.as_mut().poll(context).map(|()| Err(Broken::Gone))
        }));
        let found = match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => found,
            Poll::Pending => self.runtime.block_on(next),
        };
        if found.is_ok() && self.shared.is_active() {
            *self.reader() = Some(reader);
        }
        found
    }

    /// End the call because of what the client sent.
    fn break_off(&self, broken: &Broken) {
        match broken {
            Broken::Gone => {}
            Broken::TooLarge(size) => {
                self.shared.cut(metadata::status(RESOURCE_EXHAUSTED, &too_large(*size)));
            }
            Broken::Malformed(why) => {
                self.shared.cut(metadata::status(INTERNAL, &format!("malformed request: {why}")));
            }
        }
    }
}

pub fn too_large(size: usize) -> String {
    format!("the message has {size} bytes, which is more than this server receives: send less at a time")
}

/// A message with its prefix, and what of it is not copied.
fn framed(message: &Bound<'_, PyBytes>) -> PyResult<(Bytes, Option<Bytes>)> {
    let data = message.as_bytes();
    let size = u32::try_from(data.len()).map_err(|_| PyTypeError::new_err("a message has at most 4 GiB"))?;
    let copied = if data.len() <= COPIED { data.len() } else { 0 };
    let mut prefix = BytesMut::with_capacity(PREFIX + copied);
    prefix.put_u8(0);
    prefix.put_u32(size);
    prefix.extend_from_slice(&data[..copied]);
    let rest = if copied < data.len() { Some(Bytes::from_owner(PyBackedBytes::from(message.clone()))) } else { None };
    Ok((prefix.freeze(), rest))
}

fn headers_of(pairs: &Bound<'_, PyAny>, headers: &mut HeaderMap) -> PyResult<()> {
    for pair in pairs.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = pair?.extract()?;
        let added = match value.cast::<PyBytes>() {
            Ok(bytes) => metadata::add(headers, &name, bytes.as_bytes()),
            Err(_) => metadata::add(headers, &name, value.cast::<PyString>()?.to_cow()?.as_bytes()),
        };
        if !added {
            return Err(PyValueError::new_err(format!("metadata {name:?} cannot be sent")));
        }
    }
    Ok(())
}

#[pymethods]
impl Call {
    /// The path of the method, such as `/package.Service/Method`.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// The metadata that the client sent.
    pub fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let found = metadata::received(&self.headers);
        let pairs: Vec<Bound<'py, PyTuple>> = found
            .into_iter()
            .map(|(name, value)| {
                let value = match value {
                    Value::Text(text) => PyString::new(py, &text).into_any(),
                    Value::Binary(bytes) => PyBytes::new(py, &bytes).into_any(),
                };
                PyTuple::new(py, [PyString::intern(py, name).into_any(), value])
            })
            .collect::<PyResult<_>>()?;
        PyTuple::new(py, pairs)
    }

    /// The address of the client, in the form of gRPC.
    fn peer(&self) -> String {
        match &self.peer {
            Peer::Ip(SocketAddr::V4(address)) => format!("ipv4:{address}"),
            Peer::Ip(SocketAddr::V6(address)) => format!("ipv6:%5B{}%5D:{}", address.ip(), address.port()),
            Peer::Unix => "unix:".to_owned(),
        }
    }

    /// How many seconds are left until the deadline; None without one.
    fn time_remaining(&self) -> Option<f64> {
        self.shared.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Whether the client still waits for the response.
    fn is_active(&self) -> bool {
        self.shared.is_active()
    }

    /// The next message, None at the end of the stream, or False if there will be no more because the call is over.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match py.detach(|| self.next()) {
            Ok(Some(message)) => Ok(PyBytes::new(py, &message).into_any()),
            Ok(None) => Ok(py.None().into_bound(py)),
            Err(broken) => {
                self.break_off(&broken);
                Ok(false.into_pyobject(py)?.to_owned().into_any())
            }
        }
    }

    /// Send metadata before the first message.
    fn send_metadata(&self, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut headers = HeaderMap::new();
        headers_of(pairs, &mut headers)?;
        let mut inner = self.shared.lock();
        if inner.has_begun || inner.initial.is_some() {
            return Err(PyValueError::new_err("the response has begun already"));
        }
        inner.initial = Some(headers);
        Ok(())
    }

    /// Send a message and end the call, in one step. False if it is over already.
    #[pyo3(signature = (message, code, details, trailers=None))]
    fn reply(
        &self,
        message: &Bound<'_, PyBytes>,
        code: u32,
        details: &str,
        trailers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let mut headers = metadata::status(code, details);
        if let Some(trailers) = trailers {
            headers_of(trailers, &mut headers)?;
        }
        let (prefix, rest) = framed(message)?;
        let mut inner = self.shared.lock();
        let is_active = !inner.is_over && inner.trailers.is_none();
        if is_active {
            inner.queued += prefix.len() + rest.as_ref().map_or(0, Bytes::len);
            inner.queue.push_back(prefix);
            inner.queue.extend(rest);
            inner.trailers = Some(headers);
            inner.wake();
        }
        drop(inner);
        drop(self.reader().take());
        Ok(is_active)
    }

    /// Send a message, and wait while the client does not read. False if the call is over.
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyBytes>) -> PyResult<bool> {
        let (prefix, rest) = framed(message)?;
        let mut inner = self.shared.lock();
        if inner.is_over || inner.trailers.is_some() {
            return Ok(false);
        }
        inner.queued += prefix.len() + rest.as_ref().map_or(0, Bytes::len);
        inner.queue.push_back(prefix);
        inner.queue.extend(rest);
        if inner.may_wait && inner.queued <= SHORT {
            if !std::mem::replace(&mut inner.is_held, true) {
                self.held.add(&self.shared);
            }
            return Ok(true);
        }
        inner.begin_now();
        if inner.queued <= READ_AHEAD {
            return Ok(true);
        }
        drop(inner);
        Ok(py.detach(|| {
            let mut inner = self.shared.lock();
            while inner.queued > READ_AHEAD && !inner.is_over && inner.trailers.is_none() {
                inner.waits = true;
                inner = self.shared.room.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
            !inner.is_over && inner.trailers.is_none()
        }))
    }

    /// End the call with a status, after what was sent. False if it is over already.
    #[pyo3(signature = (code, message, trailers=None))]
    fn finish(&self, code: u32, message: &str, trailers: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let mut headers = metadata::status(code, message);
        if let Some(trailers) = trailers {
            headers_of(trailers, &mut headers)?;
        }
        let ended = self.shared.end(headers);
        drop(self.reader().take());
        Ok(ended)
    }

    /// End the call with a status, from any thread, and throw away what the client has not read.
    fn cut(&self, code: u32, message: &str) -> bool {
        self.shared.cut(metadata::status(code, message))
    }

    /// Call a function, in another thread, when the call is over. False if it is over already.
    fn when_over(&self, callback: Py<PyAny>) -> bool {
        let mut inner = self.shared.lock();
        if inner.is_over {
            return false;
        }
        inner.callbacks.push(callback);
        true
    }
}

