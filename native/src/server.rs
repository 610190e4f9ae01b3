//! The server: listeners, connections, the dispatch of calls, and the end of all that.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue, CONTENT_TYPE};
use hyper::server::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::call::{self, Call, Guard, Held, Peer, Response, Shared};
use crate::lanes::Lanes;
use crate::messages::{Broken, Reader};
use crate::metadata;
use crate::tls;

/// A request up to this size is awaited before Python hears of the call.
const AWAITED: usize = 64 * 1024;
/// How long a connection may take for the handshakes of TLS and HTTP/2.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// How long a connection may take to send the last responses when the server stops.
const FLUSH: Duration = Duration::from_secs(1);
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    Serving,
    Draining,
    Ended,
}

#[derive(Clone)]
pub struct Limits {
    message_bytes: usize,
    header_bytes: u32,
    streams: u32,
    connections: usize,
    opening: Duration,
    keepalive: Duration,
    keepalive_timeout: Duration,
}

/// How long the lane of a caller is remembered.
const LANE_KNOWN: Duration = Duration::from_secs(1);
const MAX_LANES: usize = 10_000;

/// A method, as Python describes it: `lane_of` is a function from its headers to the lane of a call. If `lane_headers` decide
/// about the lane, it is remembered for a short time.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Method {
    is_single: bool,
    threads: Py<Lanes>,
    lane_of: Option<Py<PyAny>>,
    lane_headers: Option<Vec<String>>,
}

pub struct State {
    methods: HashMap<String, Method>,
    /// The lanes of callers, for a while, by the headers that decide about them.
    lanes: Mutex<HashMap<u64, (Arc<str>, Instant)>>,
    hashes: RandomState,
    limits: Limits,
    calls: Mutex<HashMap<u64, Weak<Shared>>>,
    numbers: AtomicU64,
    connections: AtomicUsize,
    held: Arc<Held>,
    stage: watch::Sender<Stage>,
    ended: Mutex<bool>,
    has_ended: Condvar,
    is_closed: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl State {
    fn entered(self: &Arc<State>, shared: &Arc<Shared>) -> Guard {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        locked(&self.calls).insert(number, Arc::downgrade(shared));
        Guard { shared: shared.clone(), server: self.clone(), number }
    }

    /// A call is over. Its callbacks run elsewhere, because they may take long.
    pub fn left(&self, number: u64, callbacks: Vec<Py<PyAny>>) {
        locked(&self.calls).remove(&number);
        if callbacks.is_empty() || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || {
                Python::try_attach(|py| {
                    for callback in callbacks {
                        if let Err(error) = callback.call0(py) {
                            error.write_unraisable(py, None);
                        }
                    }
                });
            });
        }
    }
}

/// gRPC servers in other languages answer what is not gRPC with plain HTTP.
fn plain(status: StatusCode) -> hyper::Response<Response> {
    let mut response = hyper::Response::new(Response::empty());
    *response.status_mut() = status;
    response
}

fn trailers_only(code: u32, message: &str) -> hyper::Response<Response> {
    begun(metadata::status(code, message), Response::empty())
}

fn begun(headers: HeaderMap, body: Response) -> hyper::Response<Response> {
    let mut response = hyper::Response::new(body);
    *response.headers_mut() = headers;
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    response
}

async fn serve(state: Arc<State>, peer: Peer, request: Request<Incoming>) -> hyper::Response<Response> {
    let (parts, body) = request.into_parts();
    if parts.method != hyper::Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED);
    }
    let content_type = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if !content_type.starts_with(b"application/grpc") {
        return plain(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    let path = parts.uri.path();
    let Some(method) = state.methods.get(path) else { return trailers_only(12, "Method not found!") };
    let encoding = parts.headers.get("grpc-encoding").map_or(&b"identity"[..], HeaderValue::as_bytes);
    if encoding != b"identity" {
        return trailers_only(12, "this server does not decompress messages: send them uncompressed");
    }
    let deadline = match parts.headers.get("grpc-timeout") {
        None => None,
        Some(value) => match metadata::timeout(value.as_bytes()) {
            None => return trailers_only(call::INTERNAL, "the header grpc-timeout is malformed"),
            Some(left) => Instant::now().checked_add(left),
        },
    };
    let mut reader = Reader::new(body, state.limits.message_bytes);
    let shared = Arc::new(Shared::new(deadline, method.is_single));
    let guard = state.entered(&shared);
    if method.is_single {
        let first = std::future::poll_fn(|context| reader.poll_first(context, AWAITED));
        let mut until = Instant::now() + state.limits.opening;
        until = deadline.map_or(until, |deadline| deadline.min(until));
        let over = shared.over.notified();
        let first = async {
            let mut over = std::pin::pin!(over);
            let mut first = std::pin::pin!(first);
            std::future::poll_fn(|context| match first.as_mut().poll(context) {
                Poll::Ready(found) => Poll::Ready(found),
                Poll::Pending => over.as_mut().poll(context).map(|()| Err(Broken::Gone)),
            })
            .await
        };
        match tokio::time::timeout_at(until.into(), first).await {
            Ok(Ok(())) => {}
            Ok(Err(Broken::TooLarge(size))) => return trailers_only(call::RESOURCE_EXHAUSTED, &call::too_large(size)),
            Ok(Err(Broken::Malformed(why))) => {
                return trailers_only(call::INTERNAL, &format!("malformed request: {why}"))
            }
            Ok(Err(Broken::Gone)) => return trailers_only(call::CANCELLED, "the call was cancelled"),
            Err(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                return trailers_only(call::DEADLINE_EXCEEDED, "Deadline Exceeded")
            }
            Err(_) => {
                let limit = state.limits.opening.as_secs_f64();
                let message =
                    format!("the client sent no request for {limit} s, which is the limit of this server: call again");
                return trailers_only(call::DEADLINE_EXCEEDED, &message);
            }
        }
    }
    let call = Call {
        shared: shared.clone(),
        path: path.to_owned(),
        headers: parts.headers,
        peer,
        reader: Mutex::new(Some(reader)),
        runtime: tokio::runtime::Handle::current(),
        held: state.held.clone(),
    };
    let lane = match lane_of(&state, method, &call) {
        Some(lane) => lane,
        None => return trailers_only(call::UNAVAILABLE, "the server is ending"),
    };
    let threads = method.threads.get();
    if threads.submit(&lane, call).is_err() {
        let message = format!(
            "{} calls of this caller wait for a thread, which is the limit of this server: send fewer at a time",
            threads.waiting
        );
        return trailers_only(call::RESOURCE_EXHAUSTED, &message);
    }
    let headers = shared.begin().await;
    begun(headers, Response::of(guard))
}

/// The lane of a call; None if Python cannot be asked any more.
fn lane_of(state: &State, method: &Method, call: &Call) -> Option<Arc<str>> {
    let Some(function) = &method.lane_of else { return Some("".into()) };
    let key = method.lane_headers.as_ref().map(|names| {
        let values: Vec<_> = names.iter().map(|name| call.headers.get(name).map(HeaderValue::as_bytes)).collect();
        state.hashes.hash_one(values)
    });
    if let Some(key) = key {
        if let Some((lane, since)) = locked(&state.lanes).get(&key) {
            if since.elapsed() < LANE_KNOWN {
                return Some(lane.clone());
            }
        }
    }
    if state.is_closed.load(Ordering::Acquire) {
        return None;
    }
    let found: Arc<str> = Python::try_attach(|py| {
        let asked = call.metadata(py).and_then(|pairs| {
            let headers = py.get_type::<pyo3::types::PyDict>().call1((pairs,))?;
            function.call1(py, (headers,))?.extract::<String>(py)
        });
        asked.map_or_else(
            |error| {
                error.write_unraisable(py, None);
                "".into()
            },
            Arc::from,
        )
    })?;
    if let Some(key) = key {
        let mut lanes = locked(&state.lanes);
        if lanes.len() >= MAX_LANES {
            lanes.clear();
        }
        lanes.insert(key, (found.clone(), Instant::now()));
    }
    Some(found)
}

// -- connections --------------------------------------------------------------------------------------------------------

enum Listener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

/// A stream that notices whether its client has sent anything, after the handshake of TLS.
struct Heard<S> {
    stream: S,
    bytes: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.bytes.fetch_add(buffer.filled().len() - before, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The preface of HTTP/2 and the first frame.
const PREFACE: usize = 24 + 9;

async fn connected<S>(state: Arc<State>, peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &state.limits;
    let heard = Arc::new(AtomicUsize::new(0));
    let serving = state.clone();
    let service = hyper::service::service_fn(move |request| {
        let (state, peer) = (serving.clone(), peer.clone());
        async move { Ok::<_, Infallible>(serve(state, peer, request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits.keepalive))
        .keep_alive_timeout(limits.keepalive_timeout)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_send_buf_size(1 << 20)
        .serve_connection(TokioIo::new(Heard { stream, bytes: heard.clone() }), service);
    let mut connection = std::pin::pin!(connection);
    let mut stage = state.stage.subscribe();
    let mut opening = Some(Box::pin(tokio::time::sleep(HANDSHAKE)));
    loop {
        let now = *stage.borrow_and_update();
        match now {
            Stage::Serving => {}
            Stage::Draining => connection.as_mut().graceful_shutdown(),
            Stage::Ended => {
                let _ = tokio::time::timeout(FLUSH, connection).await;
                return;
            }
        }
        let mut changed = std::pin::pin!(stage.changed());
        let is_over = std::future::poll_fn(|context| {
            if connection.as_mut().poll(context).is_ready() {
                return Poll::Ready(true);
            }
            if opening.as_mut().is_some_and(|alarm| alarm.as_mut().poll(context).is_ready()) {
                opening = None;
                if heard.load(Ordering::Relaxed) < PREFACE {
                    return Poll::Ready(true);
                }
            }
            changed.as_mut().poll(context).map(|changed| changed.is_err())
        })
        .await;
        if is_over {
            return;
        }
    }
}

/// Counts a connection while it is open.
struct Counted(Arc<State>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accepted<S>(state: Arc<State>, tls: Option<TlsAcceptor>, peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let counted = Counted(state.clone());
    if state.connections.fetch_add(1, Ordering::Relaxed) >= state.limits.connections {
        return;
    }
    match tls {
        None => connected(state, peer, stream).await,
        Some(acceptor) => {
            if let Ok(Ok(encrypted)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                connected(state, peer, encrypted).await;
            }
        }
    }
    drop(counted);
}

async fn accept(state: Arc<State>, listener: Listener, tls: Option<TlsAcceptor>) -> std::io::Result<()> {
    let mut stage = state.stage.subscribe();
    match listener {
        Listener::Tcp(listener) => {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            loop {
                let Some(found) = or_stage(listener.accept(), &mut stage).await else { return Ok(()) };
                match found {
                    Ok((stream, address)) => {
                        let _ = stream.set_nodelay(true);
                        tokio::spawn(accepted(state.clone(), tls.clone(), Peer::Ip(address), stream));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await, // such as too many open files
                }
            }
        }
        Listener::Unix(listener) => {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            loop {
                let Some(found) = or_stage(listener.accept(), &mut stage).await else { return Ok(()) };
                match found {
                    Ok((stream, _)) => {
                        tokio::spawn(accepted(state.clone(), None, Peer::Unix, stream));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        }
    }
}

/// The result of a future; None once the server is draining.
async fn or_stage<F: Future>(future: F, stage: &mut watch::Receiver<Stage>) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut draining = std::pin::pin!(stage.wait_for(|stage| *stage != Stage::Serving));
    std::future::poll_fn(|context| {
        if draining.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

async fn drain(state: Arc<State>, grace: Duration) {
    state.stage.send_replace(Stage::Draining);
    let until = Instant::now() + grace;
    let mut pause = Duration::from_millis(1);
    while !locked(&state.calls).is_empty() && Instant::now() < until {
        tokio::time::sleep(pause.min(until.saturating_duration_since(Instant::now()))).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let rest: Vec<Arc<Shared>> = locked(&state.calls).values().filter_map(Weak::upgrade).collect();
    for shared in rest {
        shared.cut(metadata::status(call::CANCELLED, "the server is ending"));
    }
    state.stage.send_replace(Stage::Ended);
    let until = Instant::now() + FLUSH + FLUSH;
    while state.connections.load(Ordering::Relaxed) > 0 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    *locked(&state.ended) = true;
    state.has_ended.notify_all();
}

// -- Python -------------------------------------------------------------------------------------------------------------

/// A gRPC server.
#[pyclass(frozen, module = "skiway_native")]
pub struct Server {
    limits: Limits,
    threads: usize,
    listeners: Mutex<Vec<(Listener, Option<TlsAcceptor>)>>,
    running: Mutex<Option<(Arc<State>, Runtime)>>,
}

fn bind(address: SocketAddr, share_port: bool) -> std::io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(share_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (*, max_message_bytes, max_header_bytes=64 << 10, max_streams=1000, max_connections=20_000,
                        opening_s=30.0, keepalive_s=60.0, keepalive_timeout_s=20.0, threads=2))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        max_message_bytes: usize,
        max_header_bytes: u32,
        max_streams: u32,
        max_connections: usize,
        opening_s: f64,
        keepalive_s: f64,
        keepalive_timeout_s: f64,
        threads: usize,
    ) -> PyResult<Server> {
        let seconds = |value: f64| Duration::try_from_secs_f64(value).map_err(|error| PyValueError::new_err(error.to_string()));
        Ok(Server {
            limits: Limits {
                message_bytes: max_message_bytes,
                header_bytes: max_header_bytes,
                streams: max_streams,
                connections: max_connections,
                opening: seconds(opening_s)?,
                keepalive: seconds(keepalive_s)?,
                keepalive_timeout: seconds(keepalive_timeout_s)?,
            },
            threads: threads.max(1),
            listeners: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// Listen on `host:port`, with TLS if there is a certificate, or on `unix:path`. Returns the port.
    #[pyo3(signature = (address, *, share_port=false, certificate=None, key=None, client_ca=None))]
    fn listen(
        &self,
        py: Python<'_>,
        address: &str,
        share_port: bool,
        certificate: Option<&[u8]>,
        key: Option<&[u8]>,
        client_ca: Option<&[u8]>,
    ) -> PyResult<u16> {
        let acceptor = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                Some(tls::acceptor(certificate, key, client_ca).map_err(PyValueError::new_err)?)
            }
            (None, None) => None,
            _ => return Err(PyValueError::new_err("TLS needs a certificate and a key")),
        };
        let failed = |error: std::io::Error| PyOSError::new_err(format!("cannot listen on {address}: {error}"));
        if let Some(path) = address.strip_prefix("unix:") {
            let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            locked(&self.listeners).push((Listener::Unix(listener), None));
            return Ok(0);
        }
        let addresses: Vec<SocketAddr> =
            py.detach(|| address.to_socket_addrs().map(|found| found.collect())).map_err(failed)?;
        let mut port = 0;
        for mut each in addresses {
            if port != 0 {
                each.set_port(port);
            }
            let listener = match bind(each, share_port) {
                Ok(listener) => listener,
                // a name such as localhost may have an address of a family that this machine does not have
                Err(error) if port != 0 && error.raw_os_error() == Some(99) => continue,
                Err(error) => return Err(failed(error)),
            };
            port = listener.local_addr().map_err(failed)?.port();
            locked(&self.listeners).push((Listener::Tcp(listener), acceptor.clone()));
        }
        Ok(port)
    }

    /// Serve methods, by their paths.
    fn start(&self, methods: HashMap<String, Method>) -> PyResult<()> {
        let mut running = locked(&self.running);
        if running.is_some() {
            return Err(PyRuntimeError::new_err("the server was started already"));
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(self.threads)
            .max_blocking_threads(4)
            .thread_name("grpc")
            .enable_all()
            .build()
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        let state = Arc::new(State {
            methods,
            lanes: Mutex::default(),
            hashes: RandomState::new(),
            limits: self.limits.clone(),
            calls: Mutex::default(),
            numbers: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            held: Arc::default(),
            stage: watch::Sender::new(Stage::Serving),
            ended: Mutex::new(false),
            has_ended: Condvar::new(),
            is_closed: AtomicBool::new(false),
        });
        let held = state.held.clone();
        std::thread::Builder::new()
            .name("grpc-held".into())
            .spawn(move || held.run())
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        for (listener, tls) in locked(&self.listeners).drain(..) {
            runtime.spawn(accept(state.clone(), listener, tls));
        }
        *running = Some((state, runtime));
        Ok(())
    }

    /// Accept nothing more, let calls run for `grace_s` seconds, and then cancel them. Returns immediately.
    fn stop(&self, grace_s: f64) -> PyResult<()> {
        let grace = Duration::try_from_secs_f64(grace_s).map_err(|error| PyValueError::new_err(error.to_string()))?;
        locked(&self.listeners).clear();
        if let Some((state, runtime)) = locked(&self.running).as_ref() {
            runtime.spawn(drain(state.clone(), grace));
        }
        Ok(())
    }

    /// Wait until the server has ended; False after `timeout_s` seconds.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let Some(state) = locked(&self.running).as_ref().map(|(state, _)| state.clone()) else { return Ok(true) };
        let timeout = Duration::try_from_secs_f64(timeout_s.unwrap_or(1e9))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(py.detach(|| {
            let ended = locked(&state.ended);
            let (ended, _) = state
                .has_ended
                .wait_timeout_while(ended, timeout, |ended| !*ended)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            *ended
        }))
    }

    /// End all threads. Nothing calls Python afterwards.
    fn close(&self, py: Python<'_>) {
        let Some((state, runtime)) = locked(&self.running).take() else { return };
        state.is_closed.store(true, Ordering::Release);
        state.held.close();
        py.detach(|| runtime.shutdown_timeout(Duration::from_secs(5)));
    }

    /// How many connections are open, and how many calls.
    fn open(&self) -> (usize, usize) {
        locked(&self.running).as_ref().map_or((0, 0), |(state, _)| {
            (state.connections.load(Ordering::Relaxed), locked(&state.calls).len())
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((state, runtime)) = locked(&self.running).take() {
            state.is_closed.store(true, Ordering::Release);
            state.held.close();
            runtime.shutdown_background(); // a thread may wait for the interpreter, which this thread holds
        }
    }
}
