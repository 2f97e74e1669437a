//! Rank 0's card: where it is, and what proves that a caller belongs to the run.
//!
//! PMIx hands it to the ranks of its job and to nobody else. Without PMIx, ranks of one machine read it from a file that
//! only their user may read; ranks of several machines have to be told the token.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::token::{Token, TokenError};

/// Where rank 0 is met, and with what.
#[derive(Debug, Clone)]
pub struct Card {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its machine.
    pub host: String,
    /// The run's.
    pub token: Token,
}

/// A card that can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// Not a card.
    #[error("rank 0's card can't be read: {0}")]
    Format(#[from] serde_json::Error),
    /// Its token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The folder, or the file in it, belongs to somebody else or is open to others.
    #[error("{} is not this user's alone: remove it, or set XDG_RUNTIME_DIR to a folder of this user", .0.display())]
    NotOurs(PathBuf),
    /// The system refused it.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct Written {
    address: SocketAddr,
    host: String,
    token: String,
}

impl Card {
    /// As text. Whoever reads it belongs to the run.
    ///
    /// # Errors
    /// Never, for a card.
    pub fn reveal(&self) -> Result<String, CardError> {
        let token = self.token.reveal().to_owned();
        Ok(serde_json::to_string(&Written {
            address: self.address,
            host: self.host.clone(),
            token,
        })?)
    }

    /// From [`reveal`](Self::reveal)'s text.
    ///
    /// # Errors
    /// It is none.
    pub fn read(text: &str) -> Result<Self, CardError> {
        let Written { address, host, token } = serde_json::from_str(text)?;
        Ok(Self { address, host, token: Token::agreed(&token)? })
    }
}

/// A card in a file of the user's own, which is removed with this value.
#[derive(Debug)]
pub struct CardFile(PathBuf);

/// The most bytes of a card.
const MOST: u64 = 4096;

impl CardFile {
    /// Where the card of the run that meets at `port` is.
    #[must_use]
    pub fn path(port: u16) -> PathBuf {
        let uid = rustix::process::getuid().as_raw();
        let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(own) if !own.is_empty() => PathBuf::from(own).join("gicbench"),
            _ => std::env::temp_dir().join(format!("gicbench-{uid}")),
        };
        folder.join(format!("ranks-{port}"))
    }

    /// Writes a card to `path`, in place of one that another run has left.
    ///
    /// # Errors
    /// The folder is not this user's alone, or the system refuses it.
    pub fn write(path: &Path, card: &Card) -> Result<Self, CardError> {
        let failed = |source| CardError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed(error));
                }
                _ => own(folder, &fs::symlink_metadata(folder).map_err(failed)?)?,
            }
        }
        // Under another name until it is whole: who waits for it reads all of it or nothing.
        let whole = path.with_extension(std::process::id().to_string());
        let _ = fs::remove_file(&whole);
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&whole);
        let text = card.reveal()?;
        let written = open
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&whole, path));
        if let Err(error) = written {
            let _ = fs::remove_file(&whole);
            return Err(failed(error));
        }
        Ok(Self(path.to_owned()))
    }

    /// The card at `path`; none where there is no file yet.
    ///
    /// # Errors
    /// It is another user's, open to others, or no card.
    pub fn read(path: &Path) -> Result<Option<Card>, CardError> {
        let failed = |source| CardError::Io { path: path.to_owned(), source };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        // Of what was opened, not of what the name says by now.
        own(path, &file.metadata().map_err(failed)?)?;
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text).map_err(failed)?;
        Card::read(&text).map(Some)
    }
}

fn own(path: &Path, found: &fs::Metadata) -> Result<(), CardError> {
    let ours = found.uid() == rustix::process::getuid().as_raw();
    if ours && found.mode() & 0o077 == 0 && !found.is_symlink() {
        Ok(())
    } else {
        Err(CardError::NotOurs(path.to_owned()))
    }
}

impl Drop for CardFile {
    fn drop(&mut self) {
        // It may be another run's by now; that one has it anew as soon as somebody asks.
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn card() -> Card {
        Card {
            address: "127.0.0.1:7".parse().unwrap(),
            host: "here".to_owned(),
            token: Token::random().unwrap(),
        }
    }

    #[test]
    fn a_card_is_read_as_it_was_written_and_gone_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own").join("ranks-7");
        assert!(CardFile::read(&path).unwrap().is_none());
        let card = card();
        let file = CardFile::write(&path, &card).unwrap();
        let found = CardFile::read(&path).unwrap().unwrap();
        assert_eq!((found.address, &found.token), (card.address, &card.token));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert!(CardFile::read(&path).unwrap().is_none());
    }

    #[test]
    fn a_card_that_others_could_have_written_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ranks-7");
        fs::write(&path, card().reveal().unwrap()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(CardFile::read(&path), Err(CardError::NotOurs(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(CardFile::read(&path).unwrap().is_some());
        fs::write(&path, "{}").unwrap();
        assert!(matches!(CardFile::read(&path), Err(CardError::Format(_))));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(CardFile::write(&path, &card()), Err(CardError::NotOurs(_))));
    }
}
