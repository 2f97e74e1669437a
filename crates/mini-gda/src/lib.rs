//! mini-gda
