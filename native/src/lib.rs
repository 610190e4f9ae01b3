//! A gRPC server for Python handlers: HTTP/2, TLS, framing and flow control here, and everything else in Python.

mod call;
mod lanes;
mod messages;
mod metadata;
mod server;
mod tls;

use pyo3::prelude::*;

#[pymodule]
mod skiway_native {
    #[pymodule_export]
    use crate::call::Call;
    #[pymodule_export]
    use crate::lanes::Lanes;
    #[pymodule_export]
    use crate::server::Server;
}
