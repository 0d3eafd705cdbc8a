// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The secret word of those who may look at the page: a file's content, offered as
//! `Authorization: Bearer WORD`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

/// Shorter ones can be guessed.
const LEAST_BYTES: usize = 32;
/// Longer ones are no tokens.
const MOST_BYTES: usize = 512;
/// Nobody writes it but its owner, and nobody reads it who is not of its group.
const FORBIDDEN_MODE: u32 = 0o037;

/// Why a file holds no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The system refused.
    #[error("cannot read the token in {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// A directory, a pipe.
    #[error("{} is not a file with a token", .0.display())]
    NoFile(PathBuf),
    /// It is no secret.
    #[error("{} has mode {mode:04o}: others can read or write the token", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Too short, too long, or of more than letters.
    #[error("{} does not hold one word of {LEAST_BYTES} to {MOST_BYTES} letters and digits", .0.display())]
    Word(PathBuf),
}

impl TokenError {
    /// What the operator should do.
    pub fn next(&self) -> String {
        match self {
            Self::Read { .. } => "check its path, and that the daemon's user may read it".into(),
            Self::NoFile(path) | Self::Word(path) => format!(
                "make one: (umask 077; head -c 32 /dev/urandom | base64 >{})",
                path.display()
            ),
            Self::Open { path, .. } => format!("chmod 600 {}", path.display()),
        }
    }
}

/// The word.
pub struct Token(Vec<u8>);

impl Token {
    /// Of a file that is a secret.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |cause| TokenError::Read {
            path: path.to_path_buf(),
            cause,
        };
        // Opening a pipe would wait for its writer.
        let metadata = path.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(TokenError::NoFile(path.to_path_buf()));
        }
        let file = File::open(path).map_err(failed)?;
        // Of what was opened.
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
        if mode & FORBIDDEN_MODE != 0 {
            return Err(TokenError::Open {
                path: path.to_path_buf(),
                mode,
            });
        }
        let mut bytes = Vec::new();
        (file.take(2 * MOST_BYTES as u64).read_to_end(&mut bytes)).map_err(failed)?;
        let word = bytes.trim_ascii();
        let is_word = word.iter().all(u8::is_ascii_graphic);
        if !is_word || !(LEAST_BYTES..=MOST_BYTES).contains(&word.len()) {
            return Err(TokenError::Word(path.to_path_buf()));
        }
        Ok(Self(word.to_vec()))
    }

    /// Does a header's value offer it? How long that takes tells its length at most.
    pub fn is_offered(&self, authorization: &[u8]) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let Some((scheme, word)) = authorization.split_at_checked(SCHEME.len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(SCHEME) && bool::from(self.0.ct_eq(word.trim_ascii()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const WORD: &str = "0123456789abcdefghijklmnopqrstuvwxyz+/==";

    fn of(content: &str, mode: u32) -> Result<Token, TokenError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Token::read(&path)
    }

    #[test]
    fn the_word_and_nothing_else_is_the_token() {
        let token = of(&format!("{WORD}\n"), 0o600).unwrap();
        let offered = |value: &str| token.is_offered(value.as_bytes());
        assert!(offered(&format!("Bearer {WORD}")));
        assert!(offered(&format!("bearer  {WORD}")));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            WORD,
            &format!("Basic {WORD}"),
            &format!("Bearer {WORD}x"),
            &format!("Bearer {}", &WORD[1..]),
            &format!("Bearer {}", WORD.to_uppercase()),
        ] {
            assert!(!offered(wrong), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for mode in [0o604, 0o644, 0o660, 0o602] {
            let refused = of(WORD, mode);
            assert!(matches!(refused, Err(TokenError::Open { .. })), "{mode:o}");
        }
        assert!(of(WORD, 0o640).is_ok());
        for content in ["", "short", &format!("two {WORD}"), &WORD.repeat(20)] {
            let refused = of(content, 0o600);
            assert!(matches!(refused, Err(TokenError::Word(_))), "{content}");
        }
        let directory = tempfile::tempdir().unwrap();
        let refused = Token::read(directory.path());
        assert!(matches!(refused, Err(TokenError::NoFile(_))));
        let refused = Token::read(&directory.path().join("none"));
        assert!(matches!(refused, Err(TokenError::Read { .. })));
    }
}
