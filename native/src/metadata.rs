//! Headers as gRPC defines them: metadata, percent-encoded messages, timeouts.

use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

/// Headers that belong to the protocol and not to the caller.
const OWN: [&str; 5] = ["te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"];

pub enum Value {
    Text(String),
    Binary(Vec<u8>),
}

/// The metadata of a call. Binary values that are not Base64 are left out.
pub fn received(headers: &HeaderMap) -> Vec<(&str, Value)> {
    let mut pairs = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        let name = name.as_str();
        if OWN.contains(&name) {
            continue;
        }
        if name.ends_with("-bin") {
            // several values may share one header
            for part in value.as_bytes().split(|byte| *byte == b',') {
                if let Some(decoded) = from_base64(part.trim_ascii()) {
                    pairs.push((name, Value::Binary(decoded)));
                }
            }
        } else {
            let text = match std::str::from_utf8(value.as_bytes()) {
                Ok(text) => text.to_owned(),
                Err(_) => value.as_bytes().iter().map(|byte| *byte as char).collect(),
            };
            pairs.push((name, Value::Text(text)));
        }
    }
    pairs
}

/// Add a pair of metadata; false if HTTP/2 does not allow it.
pub fn add(headers: &mut HeaderMap, name: &str, value: &[u8]) -> bool {
    let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else { return false };
    let encoded = if name.ends_with("-bin") {
        HeaderValue::from_bytes(to_base64(value).as_bytes())
    } else {
        HeaderValue::from_bytes(value)
    };
    let Ok(encoded) = encoded else { return false };
    headers.try_append(key, encoded).is_ok()
}

/// The trailers of a call with this status.
pub fn status(code: u32, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert("grpc-status", HeaderValue::from(code));
    if !message.is_empty() {
        if let Ok(value) = HeaderValue::from_str(&percent_encoded(message)) {
            headers.insert("grpc-message", value);
        }
    }
    headers
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The value of `grpc-timeout`: up to eight digits and a unit.
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn to_base64(data: &[u8]) -> String {
    let mut out = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0u32, |bits, (i, byte)| bits | (*byte as u32) << (16 - 8 * i));
        for i in 0..=chunk.len() {
            out.push(DIGITS[(bits >> (18 - 6 * i)) as usize & 63] as char);
        }
    }
    out
}

fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let digits = &text[..end];
    if text.len() - end > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.chunks(4) {
        let mut bits = 0u32;
        for (i, digit) in chunk.iter().enumerate() {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits |= (value as u32) << (18 - 6 * i);
        }
        out.extend((1..chunk.len()).map(|i| (bits >> (24 - 8 * i)) as u8));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_round_trips() {
        for size in 0..50u8 {
            let data: Vec<u8> = (0..size).map(|i| i.wrapping_mul(37) ^ 0xa5).collect();
            assert_eq!(from_base64(to_base64(&data).as_bytes()), Some(data));
        }
        assert_eq!(to_base64(b"hello"), "aGVsbG8");
        assert_eq!(from_base64(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(from_base64(b"a"), None);
        assert_eq!(from_base64(b"aGV*"), None);
    }

    #[test]
    fn timeouts_have_a_unit() {
        assert_eq!(timeout(b"20m"), Some(Duration::from_millis(20)));
        assert_eq!(timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for wrong in [&b""[..], b"5", b"m", b"123456789S", b"-1S", b"1x", b"\xff"] {
            assert_eq!(timeout(wrong), None);
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("50% of \u{fc}\n"), "50%25 of %C3%BC%0A");
    }
}
