//! The messages of a request, which arrive in chunks: one flag byte, four bytes of size, and the message.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body, Incoming};

pub const PREFIX: usize = 5;
const SMALL: usize = 2048;

/// Why no message can be read any more.
#[derive(Debug, PartialEq)]
pub enum Broken {
    /// The client is gone, or has reset the stream.
    Gone,
    /// The client sent a message that is larger than allowed.
    TooLarge(usize),
    /// The client sent something that gRPC does not define.
    Malformed(&'static str),
}

/// Collects chunks until a message is complete.
pub struct Reader {
    body: Incoming,
    frames: Frames,
    ended: bool,
}

impl Reader {
    pub fn new(body: Incoming, max_bytes: usize) -> Reader {
        Reader { body, frames: Frames::new(max_bytes), ended: false }
    }

    /// The next message; None at the end of the stream.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        loop {
            if let Some(message) = self.frames.take()? {
                return Poll::Ready(Ok(Some(message)));
            }
            if self.ended {
                return Poll::Ready(if self.frames.is_empty() {
                    Ok(None)
                } else {
                    Err(Broken::Malformed("the last message is incomplete"))
                });
            }
            std::task::ready!(self.poll_chunk(context))?;
        }
    }

    /// Poll for the first message, but stop once it is clear that it has more than `most` bytes.
    pub fn poll_first(&mut self, context: &mut Context<'_>, most: usize) -> Poll<Result<(), Broken>> {
        loop {
            if self.frames.has_message()? || self.frames.size > most || self.ended {
                return Poll::Ready(Ok(()));
            }
            std::task::ready!(self.poll_chunk(context))?;
        }
    }

    /// Receive the next chunk of the stream, or notice its end.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
            None => self.ended = true,
            Some(Err(_)) => return Poll::Ready(Err(Broken::Gone)),
            Some(Ok(frame)) => {
                if let Ok(chunk) = frame.into_data() {
                    self.frames.push(chunk);
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Chunks that have arrived.
struct Frames {
    chunks: std::collections::VecDeque<Bytes>,
    /// Small chunks, copied: each would keep the whole buffer in memory that it was read into.
    tail: BytesMut,
    size: usize,
    max_bytes: usize,
}

impl Frames {
    fn new(max_bytes: usize) -> Frames {
        Frames { chunks: Default::default(), tail: BytesMut::new(), size: 0, max_bytes }
    }

    fn push(&mut self, chunk: Bytes) {
        self.size += chunk.len();
        if chunk.len() >= SMALL {
            self.flush();
            self.chunks.push_back(chunk);
        } else {
            self.tail.extend_from_slice(&chunk);
        }
    }

    fn flush(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }

    fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The size of the message that comes next, if its prefix is here.
    fn next_size(&self) -> Result<Option<usize>, Broken> {
        if self.size < PREFIX {
            return Ok(None);
        }
        let mut prefix = [0u8; PREFIX];
        let mut bytes = self.chunks.iter().flat_map(|chunk| chunk.iter()).chain(self.tail.iter());
        for (place, byte) in prefix.iter_mut().zip(&mut bytes) {
            *place = *byte;
        }
        match prefix[0] {
            0 => {}
            1 => return Err(Broken::Malformed("the message is compressed, which was not announced")),
            _ => return Err(Broken::Malformed("the message has unknown flags")),
        }
        let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if size > self.max_bytes {
            return Err(Broken::TooLarge(size));
        }
        Ok(Some(size))
    }

    fn has_message(&self) -> Result<bool, Broken> {
        Ok(self.next_size()?.is_some_and(|size| self.size - PREFIX >= size))
    }

    fn take(&mut self) -> Result<Option<Bytes>, Broken> {
        let Some(size) = self.next_size()? else { return Ok(None) };
        if self.size - PREFIX < size {
            return Ok(None);
        }
        self.flush();
        self.skip(PREFIX);
        self.size -= size;
        match self.chunks.front_mut() {
            None => return Ok(Some(Bytes::new())),
            Some(chunk) if chunk.len() > size => return Ok(Some(chunk.split_to(size))),
            Some(chunk) if chunk.len() == size => return Ok(self.chunks.pop_front()),
            Some(_) => {}
        }
        let mut message = BytesMut::with_capacity(size);
        while message.len() < size {
            let missing = size - message.len();
            let Some(chunk) = self.chunks.front_mut() else { break };
            if chunk.len() > missing {
                message.extend_from_slice(&chunk.split_to(missing));
            } else {
                message.extend_from_slice(chunk);
                self.chunks.pop_front();
            }
        }
        Ok(Some(message.freeze()))
    }

    fn skip(&mut self, mut count: usize) {
        self.size -= count;
        while count > 0 {
            let Some(chunk) = self.chunks.front_mut() else { return };
            if chunk.len() > count {
                chunk.advance(count);
                return;
            }
            count -= chunk.len();
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
    }

    #[test]
    fn messages_are_the_same_however_they_are_split() {
        let messages: Vec<Vec<u8>> = [0usize, 1, 4, 5, 6, 100, 3000].iter().map(|size| vec![7u8; *size]).collect();
        let stream: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
        for step in (1..40).chain([2047, 2048, 2049, stream.len()]) {
            let mut frames = Frames::new(5000);
            let mut found = Vec::new();
            for chunk in stream.chunks(step) {
                frames.push(Bytes::copy_from_slice(chunk));
                while let Some(message) = frames.take().unwrap() {
                    found.push(message.to_vec());
                }
            }
            assert_eq!(found, messages, "in steps of {step}");
            assert!(frames.is_empty());
        }
    }

    /// What `Frames` does, in the simplest way: all messages of a stream, and why there are no more.
    fn parsed(mut stream: &[u8], max_bytes: usize) -> (Vec<Vec<u8>>, Option<Broken>) {
        let mut found = Vec::new();
        while stream.len() >= PREFIX {
            let size = u32::from_be_bytes(stream[1..PREFIX].try_into().unwrap()) as usize;
            match stream[0] {
                0 if size > max_bytes => return (found, Some(Broken::TooLarge(size))),
                0 => {}
                1 => return (found, Some(Broken::Malformed("the message is compressed, which was not announced"))),
                _ => return (found, Some(Broken::Malformed("the message has unknown flags"))),
            }
            if stream.len() - PREFIX < size {
                break;
            }
            found.push(stream[PREFIX..PREFIX + size].to_vec());
            stream = &stream[PREFIX + size..];
        }
        (found, None)
    }

    /// `FUZZ_CASES=10000000 cargo test --release` tries more of them.
    #[test]
    fn random_streams_are_read_as_by_the_simple_parser() {
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let cases: usize = std::env::var("FUZZ_CASES").map_or(20_000, |number| number.parse().unwrap());
        for case in 0..cases {
            let largest = [0, 6, 300, 5000][random(4)];
            let mut stream = Vec::new();
            for _ in 0..random(6) {
                let message: Vec<u8> = (0..random(largest + 1)).map(|_| random(256) as u8).collect();
                stream.extend(framed(&message));
            }
            for _ in 0..[0, 0, 1, 4][random(4)] {
                if !stream.is_empty() {
                    let place = random(stream.len());
                    stream[place] = [0, 1, 255, random(256) as u8][random(4)];
                }
            }
            stream.truncate(stream.len() - random(1 + stream.len() / 3));
            let (expected, broken) = parsed(&stream, 4000);
            let (mut frames, mut found, mut end, mut at) = (Frames::new(4000), Vec::new(), None, 0);
            while at < stream.len() && end.is_none() {
                let longest = [1, 8, 3000, 9000][random(4)];
                let step = (1 + random(longest)).min(stream.len() - at);
                frames.push(Bytes::copy_from_slice(&stream[at..at + step]));
                at += step;
                let has_message = frames.has_message();
                match frames.take() {
                    Ok(Some(message)) => {
                        assert_eq!(has_message, Ok(true));
                        found.push(message.to_vec());
                        while let Ok(Some(message)) = frames.take() {
                            found.push(message.to_vec());
                        }
                        end = frames.take().err();
                    }
                    Ok(None) => assert_eq!(has_message, Ok(false)),
                    Err(broken) => end = Some(broken),
                }
                assert_eq!(frames.size, frames.chunks.iter().map(Bytes::len).sum::<usize>() + frames.tail.len());
            }
            assert_eq!((found, end), (expected, broken), "case {case}");
        }
    }

    #[test]
    fn large_and_compressed_messages_are_rejected() {
        let mut frames = Frames::new(10);
        frames.push(Bytes::from_static(&[0, 0, 0, 0, 11]));
        assert_eq!(frames.take(), Err(Broken::TooLarge(11)));
        let mut frames = Frames::new(10);
        frames.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert!(matches!(frames.take(), Err(Broken::Malformed(_))));
    }
}
