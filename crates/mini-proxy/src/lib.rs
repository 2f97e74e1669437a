//! mini-proxy
