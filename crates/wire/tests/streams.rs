//! Real streams over the loopback interface.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use model::{ClusterId, InstanceId, Millis, ServiceName, Term};
use prost::Message;
use protocol::message::{
    Backend, BackendSet, Down, DownBody, Heartbeat, HeartbeatAnswer, SetRevision, Sets, Up, UpBody,
};
use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Endpoint};
use wire::{
    Acceptor, ConnEvent, ConnId, ConnectError, Connection, ControlServer, End, NotCoordinator, Outbox,
    SendError, ServeError, connect, limits, pb, serve,
};

/// Long enough for a loaded machine; nothing here waits for it unless it fails.
const PATIENCE: Duration = Duration::from_secs(20);

type Events = mpsc::Sender<(ConnId, ConnEvent)>;

#[derive(Clone)]
struct Office(Arc<Mutex<Result<Events, NotCoordinator>>>);

impl Acceptor for Office {
    fn accept(&self) -> Result<Events, NotCoordinator> {
        self.0.lock().unwrap().clone()
    }
}

struct Candidate {
    address: String,
    events: mpsc::Receiver<(ConnId, ConnEvent)>,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Candidate {
    async fn serving(office: Result<(), NotCoordinator>) -> Candidate {
        let (sender, events) = mpsc::channel(64);
        let office = Office(Arc::new(Mutex::new(office.map(|()| sender))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, ControlServer::new(office), shutdown.clone()));
        Candidate { address, events, shutdown, serving }
    }

    async fn coordinator() -> Candidate {
        Candidate::serving(Ok(())).await
    }

    async fn event(&mut self) -> (ConnId, ConnEvent) {
        patiently(self.events.recv()).await.unwrap()
    }

    async fn opened(&mut self) -> (ConnId, Outbox) {
        match self.event().await {
            (conn, ConnEvent::Opened(outbox)) => (conn, outbox),
            (_, other) => panic!("{other:?} came before Opened"),
        }
    }

    async fn message(&mut self) -> (ConnId, Up) {
        match self.event().await {
            (conn, ConnEvent::Message(up)) => (conn, up),
            (_, other) => panic!("{other:?} is no message"),
        }
    }

    async fn closed(&mut self) -> ConnId {
        match self.event().await {
            (conn, ConnEvent::Closed) => conn,
            (_, other) => panic!("{other:?} came instead of Closed"),
        }
    }
}

async fn patiently<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("took too long")
}

fn heartbeat(seq: u64) -> Up {
    Up { seq, body: UpBody::Heartbeat(Heartbeat::default()) }
}

fn answer(seq: u64) -> Down {
    let body = DownBody::Answer(HeartbeatAnswer { heartbeat: seq, stored: vec![], feeds: vec![] });
    Down { seq, cluster: ClusterId(1), term: Term(2), body }
}

/// About 100 KB.
fn large(seq: u64) -> Down {
    let backend = Backend { instance: InstanceId(u64::MAX), address: "x".repeat(200) };
    let set = BackendSet {
        service: ServiceName::new("web"),
        listen: None,
        grace: Millis(0),
        backends: vec![backend; 500],
    };
    let revision = SetRevision::default();
    let body = DownBody::Sets(Sets { revision, since: revision, full: true, sets: vec![set] });
    Down { seq, cluster: ClusterId(1), term: Term(2), body }
}

#[tokio::test]
async fn messages_go_both_ways_in_order() {
    let mut candidate = Candidate::coordinator().await;
    let mut connection = connect(&candidate.address).await.unwrap();
    let (conn, outbox) = candidate.opened().await;
    for seq in 1..=500 {
        connection.sender.send(heartbeat(seq)).await.unwrap();
        assert_eq!(candidate.message().await, (conn, heartbeat(seq)));
        outbox.send(answer(seq)).unwrap();
        assert_eq!(patiently(connection.receiver.recv()).await, Some(answer(seq)));
    }
    outbox.send(large(501)).unwrap();
    assert_eq!(patiently(connection.receiver.recv()).await, Some(large(501)));
}

#[tokio::test]
async fn a_candidate_names_the_coordinator_if_it_knows() {
    for known in [Some("10.0.0.7:7000".to_owned()), None] {
        let candidate = Candidate::serving(Err(NotCoordinator { coordinator: known.clone() })).await;
        match connect(&candidate.address).await {
            Err(ConnectError::NotCoordinator { coordinator }) => assert_eq!(coordinator, known),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_address_where_nobody_answers_or_that_is_none_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    assert!(matches!(connect(&address).await, Err(ConnectError::Unreachable { .. })));
    assert!(matches!(connect("no address").await, Err(ConnectError::Address { .. })));
}

#[tokio::test]
async fn one_that_accepts_and_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = async {
        let _open = listener.accept().await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = silent => (),
        result = patiently(connect(&address)) => {
            assert!(matches!(result, Err(ConnectError::Timeout { .. })), "{result:?}");
        }
    }
}

#[tokio::test]
async fn a_daemon_that_hangs_up_gets_its_last_words_out() {
    let mut candidate = Candidate::coordinator().await;
    let Connection { sender, receiver, ended } = connect(&candidate.address).await.unwrap();
    let (conn, _outbox) = candidate.opened().await;
    for seq in 1..=10 {
        sender.send(heartbeat(seq)).await.unwrap();
    }
    let goodbye = Up { seq: 11, body: UpBody::Goodbye };
    sender.send(goodbye.clone()).await.unwrap();
    drop((sender, receiver));
    for seq in 1..=10 {
        assert_eq!(candidate.message().await, (conn, heartbeat(seq)));
    }
    assert_eq!(candidate.message().await, (conn, goodbye));
    assert_eq!(candidate.closed().await, conn);
    let end = patiently(ended).await.unwrap();
    assert!(matches!(end, End::Closed), "{end:?}");
}

#[tokio::test]
async fn either_half_that_is_dropped_ends_the_stream() {
    let mut candidate = Candidate::coordinator().await;

    let mut connection = connect(&candidate.address).await.unwrap();
    let (conn, outbox) = candidate.opened().await;
    drop(connection.sender);
    assert_eq!(candidate.closed().await, conn);
    assert_eq!(patiently(connection.receiver.recv()).await, None);
    assert_eq!(outbox.send(answer(1)), Err(SendError::Closed));

    let connection = connect(&candidate.address).await.unwrap();
    let (conn, _outbox) = candidate.opened().await;
    drop(connection.receiver);
    assert_eq!(candidate.closed().await, conn);
    patiently(connection.sender.closed()).await;
}

#[tokio::test]
async fn a_daemon_that_vanishes_is_noticed() {
    let mut candidate = Candidate::coordinator().await;
    let connection = connect(&candidate.address).await.unwrap();
    let (conn, _outbox) = candidate.opened().await;
    connection.ended.abort();
    assert_eq!(candidate.closed().await, conn);
}

#[tokio::test]
async fn a_stream_that_the_coordinator_lets_go_ends_after_what_was_sent() {
    let mut candidate = Candidate::coordinator().await;
    let mut connection = connect(&candidate.address).await.unwrap();
    let (conn, outbox) = candidate.opened().await;
    for seq in 1..=10 {
        outbox.send(answer(seq)).unwrap();
    }
    drop(outbox);
    for seq in 1..=10 {
        assert_eq!(patiently(connection.receiver.recv()).await, Some(answer(seq)));
    }
    assert_eq!(patiently(connection.receiver.recv()).await, None);
    patiently(connection.sender.closed()).await;
    let end = patiently(connection.ended).await.unwrap();
    assert!(matches!(end, End::ByCoordinator), "{end:?}");
    assert_eq!(candidate.closed().await, conn);
}

#[tokio::test]
async fn a_coordinator_that_resigns_ends_its_streams() {
    let mut candidate = Candidate::coordinator().await;
    let mut connection = connect(&candidate.address).await.unwrap();
    let (_, _outbox) = candidate.opened().await;
    drop(candidate.events);
    assert_eq!(patiently(connection.receiver.recv()).await, None);
    let end = patiently(connection.ended).await.unwrap();
    assert!(matches!(end, End::NotCoordinator { coordinator: None }), "{end:?}");
}

#[tokio::test]
async fn shutdown_ends_the_streams_and_the_server() {
    let mut candidate = Candidate::coordinator().await;
    let mut connection = connect(&candidate.address).await.unwrap();
    let (conn, _outbox) = candidate.opened().await;
    candidate.shutdown.cancel();
    assert_eq!(candidate.closed().await, conn);
    assert_eq!(patiently(connection.receiver.recv()).await, None);
    patiently(candidate.serving).await.unwrap().unwrap();
    assert!(connect(&candidate.address).await.is_err());
}

#[tokio::test]
async fn a_daemon_that_does_not_read_is_disconnected_and_others_are_not() {
    let mut candidate = Candidate::coordinator().await;
    let mut slow = connect(&candidate.address).await.unwrap();
    let (slow_conn, slow_outbox) = candidate.opened().await;
    let mut quick = connect(&candidate.address).await.unwrap();
    let (_, quick_outbox) = candidate.opened().await;

    let mut sent = 0;
    let refused = loop {
        match slow_outbox.send(large(sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        // What the network takes is not yet a full queue.
        sleep(Duration::from_millis(1)).await;
        assert!(sent < 10_000, "the queue never filled");
    };
    assert_eq!(refused, SendError::Full);
    assert!(sent >= limits::OUTBOX_CAPACITY as u64);
    assert_eq!(candidate.closed().await, slow_conn);
    assert_eq!(slow_outbox.send(answer(1)), Err(SendError::Closed));

    quick_outbox.send(answer(1)).unwrap();
    assert_eq!(patiently(quick.receiver.recv()).await, Some(answer(1)));

    let mut taken = 0;
    while let Some(down) = patiently(slow.receiver.recv()).await {
        assert_eq!(down.seq, taken, "a message was left out");
        taken += 1;
    }
    assert!(taken < sent);
    let end = patiently(slow.ended).await.unwrap();
    assert!(matches!(&end, End::Failed(status) if status.code() == Code::ResourceExhausted), "{end:?}");
}

/// A daemon that speaks bytes instead of messages.
async fn speak(address: &str, messages: Vec<Vec<u8>>) -> Code {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let (sender, body) = mpsc::channel(8);
    for message in messages {
        sender.send(message).await.unwrap();
    }
    let path = "/tidegate.v1.Control/Connect".parse().unwrap();
    let request = tonic::Request::new(ReceiverStream::new(body));
    let mut inbound = client.streaming(request, path, bytes::Codec).await.unwrap().into_inner();
    match patiently(inbound.message()).await {
        Err(status) => status.code(),
        Ok(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_malformed_message_ends_its_stream_and_nothing_else() {
    let mut candidate = Candidate::coordinator().await;
    let mut other = connect(&candidate.address).await.unwrap();
    let (_, other_outbox) = candidate.opened().await;

    let good = pb::Up::from(&heartbeat(1)).encode_to_vec();
    let malformed = [
        b"\xff\xff\xff not protobuf".to_vec(),
        pb::Up { seq: 2, body: None }.encode_to_vec(),
        vec![0; limits::UP_BYTES_MAX + 1],
    ];
    for bytes in malformed {
        let address = candidate.address.clone();
        let speaking = tokio::spawn({
            let good = good.clone();
            async move { speak(&address, vec![good, bytes]).await }
        });
        let (conn, _outbox) = candidate.opened().await;
        assert_eq!(candidate.message().await, (conn, heartbeat(1)));
        assert_eq!(candidate.closed().await, conn);
        assert_eq!(patiently(speaking).await.unwrap(), Code::InvalidArgument);
    }

    other_outbox.send(answer(1)).unwrap();
    assert_eq!(patiently(other.receiver.recv()).await, Some(answer(1)));
}

/// Messages as they are on the wire.
mod bytes {
    use prost::bytes::{Buf, BufMut};
    use tonic::{
        Status,
        codec::{DecodeBuf, Decoder, EncodeBuf, Encoder},
    };

    pub struct Codec;

    impl tonic::codec::Codec for Codec {
        type Encode = Vec<u8>;
        type Decode = Vec<u8>;
        type Encoder = Codec;
        type Decoder = Codec;

        fn encoder(&mut self) -> Codec {
            Codec
        }
        fn decoder(&mut self) -> Codec {
            Codec
        }
    }

    impl Encoder for Codec {
        type Item = Vec<u8>;
        type Error = Status;

        fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
            into.put_slice(&item);
            Ok(())
        }
    }

    impl Decoder for Codec {
        type Item = Vec<u8>;
        type Error = Status;

        fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
            let mut item = vec![0; from.remaining()];
            from.copy_to_slice(&mut item);
            Ok(Some(item))
        }
    }
}

#[tokio::test]
async fn a_daemon_that_floods_is_slowed_down_and_the_others_are_heard_meanwhile() {
    // Far more than a burst: at the rate of a stream it would take minutes.
    const FLOOD: u64 = 100_000;
    let mut candidate = Candidate::coordinator().await;
    let began = std::time::Instant::now();
    let loud = connect(&candidate.address).await.unwrap();
    let (of_loud, _outbox) = candidate.opened().await;
    let quiet = connect(&candidate.address).await.unwrap();
    let (of_quiet, _other) = candidate.opened().await;
    let sender = loud.sender.clone();
    let flood = tokio::spawn(async move {
        for seq in 1..=FLOOD {
            if sender.send(heartbeat(seq)).await.is_err() {
                return;
            }
        }
    });
    let mut heard = 0;
    while heard < u64::from(doors::limits::STREAM_BURST) {
        let (conn, up) = candidate.message().await;
        heard += 1;
        assert_eq!((conn, up.seq), (of_loud, heard), "in order, none left out");
    }
    for seq in 1..=50 {
        quiet.sender.send(heartbeat(seq)).await.unwrap();
        loop {
            let (conn, up) = candidate.message().await;
            if conn == of_quiet {
                assert_eq!(up.seq, seq);
                break;
            }
            heard += 1;
        }
    }
    // However slow the machine: time that passed allows more, never less.
    let (burst, rate) = (doors::limits::STREAM_BURST, doors::limits::STREAM_MESSAGES_PER_SECOND);
    let allowed = f64::from(burst) + f64::from(rate) * began.elapsed().as_secs_f64() + 2.0;
    assert!(heard as f64 <= allowed, "{heard} of the flood came through, and {allowed} may");
    assert!(heard < FLOOD / 2, "{heard} of the flood came through before fifty heartbeats of another");
    flood.abort();
}
