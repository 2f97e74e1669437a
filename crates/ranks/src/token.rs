//! The run's token: who holds it belongs to the run. It never travels; what travels is proof of having it.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Bytes of a token made here, of a nonce, and of a proof.
pub(crate) const BYTES: usize = 32;

/// A secret text that the ranks of one run share.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

/// A text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Somebody could guess it.
    #[error(
        "a token of {bytes} bytes can be guessed: 16 at least, such as the output of `openssl rand -hex 16`"
    )]
    Short {
        /// Bytes in it.
        bytes: usize,
    },
    /// The system gave no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(#[from] rustix::io::Errno),
}

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn random() -> Result<Self, TokenError> {
        Ok(Self(random()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()))
    }

    /// One that was agreed on by other means: any text of 16 bytes or more.
    ///
    /// # Errors
    /// It is too short.
    pub fn agreed(text: &str) -> Result<Self, TokenError> {
        match text.len() {
            0..16 => Err(TokenError::Short { bytes: text.len() }),
            _ => Ok(Self(text.into())),
        }
    }

    /// The text, for [`agreed`](Self::agreed) elsewhere. Whoever reads it belongs to the run.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).ok()?;
        parts.iter().for_each(|part| mac.update(part));
        Some(mac)
    }

    /// Proof of having it, of these parts.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; BYTES] {
        self.mac(parts).map_or([0; BYTES], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether somebody's proof is one; takes as long whatever the answer.
    pub(crate) fn accepts(&self, proof: &[u8], parts: &[&[u8]]) -> bool {
        self.mac(parts).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random() -> Result<[u8; BYTES], rustix::io::Errno> {
    let mut bytes = [0; BYTES];
    let mut filled = 0;
    while filled < BYTES {
        let rest = &mut bytes[filled..];
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_token_and_of_what_was_said() {
        let (ours, theirs) = (Token::random().unwrap(), Token::random().unwrap());
        let proof = ours.prove(&[b"a", b"b"]);
        assert!(ours.accepts(&proof, &[b"a", b"b"]));
        assert!(!ours.accepts(&proof, &[b"a", b"c"]));
        assert!(!theirs.accepts(&proof, &[b"a", b"b"]));
        assert!(!ours.accepts(&proof[..31], &[b"a", b"b"]));
        assert!(!ours.accepts(&[], &[b"a", b"b"]));
    }

    #[test]
    fn a_token_survives_being_written_down_and_is_never_shown() {
        let token = Token::random().unwrap();
        assert_eq!(Token::agreed(token.reveal()).unwrap(), token);
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_eq!(Token::agreed("short"), Err(TokenError::Short { bytes: 5 }));
    }
}
