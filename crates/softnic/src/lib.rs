//! softnic
