//! Ranks that find each other, call each other, and lose each other.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ranks::{CallError, Card, Door, Identity, JoinError, Joining, Refusal, Token, World};

const PATIENCE: Duration = Duration::from_secs(20);

fn joining(rank: u32, size: u32, patience: Duration) -> Joining {
    let identity = Identity::of_this_process("same");
    Joining { rank, size, patience, identity, log: Box::new(|_| ()) }
}

fn door() -> (Door, Card) {
    let token = Token::random().unwrap();
    let door = Door::open("127.0.0.1:0".parse().unwrap(), token.clone()).unwrap();
    let card = Card { address: door.address(), host: ranks::host_name(), token };
    // As the others have it: written down.
    let card = Card::read(&card.reveal().unwrap()).unwrap();
    (door, card)
}

fn enter(card: &Card, rank: u32, size: u32) -> Result<World, JoinError> {
    World::enter(joining(rank, size, PATIENCE), &|| Ok(Some(card.clone())))
}

/// A world of `size`, in which every other rank does `service`.
fn world<R: Send>(
    size: u32,
    service: impl Fn(World) -> R + Sync,
    rank_0: impl FnOnce(&World),
) -> Vec<R> {
    let (door, card) = door();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..size)
            .map(|rank| {
                let (card, service) = (&card, &service);
                scope.spawn(move || service(enter(card, rank, size).unwrap()))
            })
            .collect();
        let world = World::gather(joining(0, size, PATIENCE), door, |rank, call| {
            [&[rank as u8], call].concat()
        });
        let world = world.unwrap();
        rank_0(&world);
        world.dismiss();
        drop(world);
        others.into_iter().map(|other| other.join().unwrap()).collect()
    })
}

#[test]
fn calls_go_to_every_rank_and_back_also_while_one_is_being_answered() {
    let service = |world: World| {
        assert_eq!(world.members().len(), 4);
        let rank = world.rank();
        world.serve(|call| {
            // Asks back before it answers.
            let asked = world.call(0, call, PATIENCE).unwrap();
            assert_eq!(asked, [&[rank as u8], call].concat());
            [call, &[rank as u8]].concat()
        })
    };
    let served = world(4, service, |world| {
        let large = vec![7u8; 5 << 20];
        for call in [b"a", &large[..]] {
            for rank in 1..4 {
                let answer = world.call(rank, call, PATIENCE).unwrap();
                assert_eq!(answer, [call, &[rank as u8]].concat());
            }
        }
        assert_eq!(world.call(4, b"a", PATIENCE), Err(CallError::NoLine { rank: 4 }));
        let bytes = (16 << 20) + 1;
        let error = world.call(3, &vec![0; bytes], PATIENCE).unwrap_err();
        assert_eq!(error, CallError::Length { bytes, most: 16 << 20 });
        assert_eq!(
            world.call(3, b"", PATIENCE),
            Err(CallError::Length { bytes: 0, most: 16 << 20 })
        );
        assert_eq!(world.lost(3), None);
    });
    assert!(served.iter().all(Result::is_ok));
}

#[test]
fn a_rank_that_ends_is_named_whether_it_is_being_called_or_not() {
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let service = |world: World| {
        if world.rank() == 1 {
            // Ends at once.
            drop(world);
            tell.lock().unwrap().send(()).unwrap();
            return;
        }
        world.serve(|call| call.to_vec()).unwrap();
    };
    world(3, service, |world| {
        told.recv_timeout(PATIENCE).unwrap();
        let until = Instant::now() + PATIENCE;
        while world.lost(1).is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let lost = world.call(1, b"a", PATIENCE).unwrap_err();
        let text = lost.to_string();
        assert!(text.contains("rank 1 (") && text.contains("it ended"), "{text}");
        assert_eq!(world.lost(1), Some(lost));
        assert_eq!(world.call(2, b"a", PATIENCE).unwrap(), b"a");
    });
}

#[test]
fn a_rank_that_does_not_answer_is_lost_after_the_callers_patience() {
    let (tell, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let service = |world: World| {
        let _ = world.serve(|call| {
            let _ = told.lock().unwrap().recv_timeout(PATIENCE);
            call.to_vec()
        });
    };
    world(2, service, |world| {
        let error = world.call(1, b"a", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.contains("did not answer within 0.05 s"), "{error}");
        tell.send(()).unwrap();
    });
}

#[test]
fn rank_0s_end_is_seen_by_those_who_serve() {
    let (door, card) = door();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| enter(&card, 1, 2).unwrap().serve(|call| call.to_vec()));
        let world = World::gather(joining(0, 2, PATIENCE), door, |_, call| call.to_vec()).unwrap();
        drop(world);
        let error = other.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("rank 0 (") && error.contains("is lost"), "{error}");
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_to_all() {
    let (door, card) = door();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| enter(&card, 2, 4));
        let patience = Duration::from_millis(300);
        let error = World::gather(joining(0, 4, patience), door, |_, call| call.to_vec());
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "of 4 ranks, ranks 1, 3 did not come within 0.3 s");
        assert_eq!(other.join().unwrap().unwrap_err().to_string(), format!("rank 0 says: {error}"));
    });
    let gone = World::enter(joining(1, 2, Duration::from_millis(100)), &|| Ok(Some(card.clone())));
    let error = gone.unwrap_err().to_string();
    assert!(
        error.contains("rank 1 did not get into the run") && error.contains("refused"),
        "{error}"
    );
    let cardless = World::enter(joining(1, 2, Duration::from_millis(100)), &|| Ok(None));
    assert!(cardless.unwrap_err().to_string().contains("left no card"));
}

#[test]
fn ranks_that_do_not_agree_do_not_begin() {
    let (door, card) = door();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let identity = Identity::of_this_process("run latency");
            let joining = Joining { identity, ..joining(1, 2, PATIENCE) };
            World::enter(joining, &|| Ok(Some(card.clone())))
        });
        let error = World::gather(joining(0, 2, PATIENCE), door, |_, call| call.to_vec());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("'run latency', and rank 0 'same'"), "{error}");
        assert!(other.join().unwrap().is_err());
    });
}

#[test]
fn strangers_are_refused_and_logged_and_hold_nobody_up() {
    let (door, card) = door();
    let (log, logged) = mpsc::channel();
    let log = std::sync::Mutex::new(log);
    let address = door.address();
    // Silent ones, one that talks of something else, and one with another token.
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut talker = TcpStream::connect(address).unwrap();
    talker
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: stranger/1.0 (xyz)\r\n\r\n")
        .unwrap();
    let forged = Card { token: Token::random().unwrap(), ..card.clone() };
    let short = Duration::from_millis(300);
    std::thread::scope(|scope| {
        let thief =
            scope.spawn(|| World::enter(joining(1, 2, short), &|| Ok(Some(forged.clone()))));
        let sizes = scope.spawn(|| enter(&card, 1, 3));
        let numbers = scope.spawn(|| enter(&card, 7, 2));
        let ours = scope.spawn(|| {
            // After the others, who must not have taken its place.
            std::thread::sleep(Duration::from_millis(400));
            enter(&card, 1, 2).unwrap().serve(|call| call.to_vec())
        });
        let log = move |line: &str| log.lock().unwrap().send(line.to_owned()).unwrap();
        let joining = Joining { log: Box::new(log), ..joining(0, 2, PATIENCE) };
        let world = World::gather(joining, door, |_, call| call.to_vec()).unwrap();
        let error = thief.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("doesn't hold the run's token"), "{error}");
        for (sent_away, why) in [(sizes, Refusal::Size), (numbers, Refusal::Rank)] {
            let error = sent_away.join().unwrap().unwrap_err();
            assert!(
                matches!(error, JoinError::Refused { refusal, .. } if refusal == why),
                "{error}"
            );
        }
        assert_eq!(world.call(1, b"a", PATIENCE).unwrap(), b"a");
        world.dismiss();
        ours.join().unwrap().unwrap();
    });
    let lines: Vec<String> = logged.try_iter().collect();
    for expected in
        ["isn't a rank of this version", "doesn't hold the run's token", "another number of ranks"]
    {
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:?}");
    }
    // Nobody was told anything but what the handshake is made of.
    let mut heard = Vec::new();
    let _ = talker.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = talker.read_to_end(&mut heard);
    assert!(heard.len() <= 32, "{heard:?}");
    drop(silent);
}

#[test]
fn two_processes_of_one_number_are_one_too_many() {
    let (door, card) = door();
    let short = Duration::from_millis(500);
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| {
            scope.spawn(|| World::enter(joining(1, 3, short), &|| Ok(Some(card.clone()))))
        });
        let world = World::gather(joining(0, 3, short), door, |_, call| call.to_vec());
        assert!(world.unwrap_err().to_string().contains("rank 2 did not come"));
        let errors: Vec<String> =
            both.into_iter().map(|one| one.join().unwrap().unwrap_err().to_string()).collect();
        let twice = errors.iter().filter(|error| error.contains("has come already")).count();
        assert_eq!(twice, 1, "{errors:?}");
    });
}
