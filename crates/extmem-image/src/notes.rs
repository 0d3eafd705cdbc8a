// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The notes of a program: who built it.

/// Whether the notes of a segment have one of Go's build identity.
pub fn are_of_go(mut notes: &[u8]) -> bool {
    const BUILD_ID: u32 = 4;
    const HEADER_BYTES: usize = 12;
    let word = |notes: &[u8], at: usize| {
        notes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map(|word| u32::from_le_bytes(*word))
    };
    while let (Some(name), Some(content), Some(kind)) =
        (word(notes, 0), word(notes, 4), word(notes, 8))
    {
        let (name, content) = (name as usize, content as usize);
        let text = notes.get(HEADER_BYTES..HEADER_BYTES + name);
        if kind == BUILD_ID && text == Some(b"Go\0\0") {
            return true;
        }
        let next = HEADER_BYTES + name.next_multiple_of(4) + content.next_multiple_of(4);
        notes = notes.get(next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_is_known_by_its_note() {
        let note = |name: &[u8], kind: u32| {
            let mut bytes = Vec::new();
            for word in [name.len() as u32, 5, kind] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(name);
            bytes.extend([0; 8]);
            bytes
        };
        let (gnu, go) = (note(b"GNU\0", 3), note(b"Go\0\0", 4));
        assert!(are_of_go(&go) && !are_of_go(&gnu) && !are_of_go(&go[..10]));
        assert!(are_of_go(&[gnu, go].concat()));
        assert!(!are_of_go(&[0xff; 40]));
    }
}
