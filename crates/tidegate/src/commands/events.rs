//! `events`: server-sent events as lines.

use std::time::Duration;

use server::view::{EventView, ResetView};

use super::Asker;
use crate::{failure::Outcome, out};

/// Without `--follow`: the server has sent what it keeps once it is silent for this long.
const SILENCE: Duration = Duration::from_millis(500);
/// Between two tries to take a broken stream up again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// One event as it comes over the wire.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frame {
    id: Option<u64>,
    event: String,
    data: String,
}

/// Puts frames together from whatever pieces arrive.
#[derive(Default)]
struct Frames {
    buffer: Vec<u8>,
    frame: Frame,
}

impl Frames {
    fn push(&mut self, piece: &[u8]) -> Vec<Frame> {
        self.buffer.extend_from_slice(piece);
        let mut done = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let frame = std::mem::take(&mut self.frame);
                if !frame.data.is_empty() {
                    done.push(frame);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.frame.id = value.parse().ok(),
                "event" => self.frame.event = value.to_owned(),
                "data" => {
                    if !self.frame.data.is_empty() {
                        self.frame.data.push('\n');
                    }
                    self.frame.data.push_str(value);
                }
                // Comments (an empty name) keep the connection open; others are not ours.
                _ => {}
            }
        }
        done
    }
}

pub async fn events(asker: &Asker, follow: bool, since: Option<u64>) -> Outcome {
    let mut seen = since;
    let mut again = false;
    loop {
        let query = match seen {
            Some(number) => format!("since={number}&follow={follow}"),
            None => format!("follow={follow}"),
        };
        let stream = asker.client.stream(&format!("/v1/events?{query}"), seen).await;
        let mut response = match stream {
            Ok(response) => response,
            // The first try tells at once that nobody is there; later ones wait for a coordinator.
            Err(failure) if !again => return Err(failure),
            Err(_) => {
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            }
        };
        let mut frames = Frames::default();
        loop {
            let piece = if follow {
                response.chunk().await
            } else {
                match tokio::time::timeout(SILENCE, response.chunk()).await {
                    Ok(piece) => piece,
                    Err(_silence) => return Ok(()),
                }
            };
            let Ok(Some(piece)) = piece else { break };
            for frame in frames.push(&piece) {
                seen = frame.id.or(seen);
                print(asker, &frame)?;
            }
        }
        if !follow {
            return Ok(());
        }
        out::note("the stream of events broke off; taking it up again");
        again = true;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn print(asker: &Asker, frame: &Frame) -> Outcome {
    if asker.is_json() {
        return out::line(&frame.data);
    }
    if frame.event == "reset" && serde_json::from_str::<ResetView>(&frame.data).is_ok() {
        out::note("some events are no longer kept; what follows is what is");
        return Ok(());
    }
    let Ok(EventView { number, kind, at, unit, message, .. }) = serde_json::from_str(&frame.data) else {
        return out::line(&frame.data);
    };
    let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
    let time = time.split(['.', 'Z']).next().unwrap_or(time);
    match asker.is_wide() {
        true => out::line(format!("{number}  {at}  {kind:<30} {unit}  {message}")),
        false => out::line(format!("{time}  {kind:<30} {unit}  {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_together_from_any_pieces() {
        let text = b": hello\n\nid: 7\nevent: a\ndata: {\"x\":1}\n\nid: 8\r\ndata: y\r\ndata: z\r\n\r\n";
        for size in 1..text.len() {
            let mut frames = Frames::default();
            let got: Vec<Frame> = text.chunks(size).flat_map(|piece| frames.push(piece)).collect();
            assert_eq!(
                got,
                [
                    Frame { id: Some(7), event: "a".to_owned(), data: "{\"x\":1}".to_owned() },
                    Frame { id: Some(8), event: String::new(), data: "y\nz".to_owned() },
                ]
            );
        }
    }
}
