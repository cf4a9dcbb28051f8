//! A proxy to a Redis server that edits scripts: the model test gives them its own clock, and plants faults.
//!
//! It reads the commands that pass. A client calls a script by its hash, which the server does not know, and then by
//! its text, which the proxy edits; from then on the hash stands for the edited text.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

type Edit = dyn Fn(&str) -> String + Send + Sync;

/// The edited script, by the hash of the original.
type Scripts = Mutex<HashMap<String, String>>;

/// Listens, and passes everything on to the server, until the process ends. Returns the port.
pub(crate) fn start(server: u16, edit: impl Fn(&str) -> String + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (edit, scripts): (Arc<Edit>, Arc<Scripts>) = (Arc::new(edit), Arc::default());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", server))) else {
                return;
            };
            let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut answers, &mut back);
                let _ = back.shutdown(Shutdown::Both);
            });
            let (edit, scripts) = (Arc::clone(&edit), Arc::clone(&scripts));
            thread::spawn(move || {
                let _ = pass_on(client, &server, &*edit, &scripts);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

fn pass_on(client: TcpStream, mut server: &TcpStream, edit: &Edit, scripts: &Scripts) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut client = BufReader::new(client);
    loop {
        let count = length(&mut client, b'*')?;
        let mut words = Vec::new();
        for _ in 0..count {
            let mut word = vec![0; length(&mut client, b'$')?];
            client.read_exact(&mut word)?;
            client.read_exact(&mut [0; 2])?;
            words.push(word);
        }
        rewrite(&mut words, edit, &mut scripts.lock().unwrap());
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            write!(command, "${}\r\n", word.len())?;
            command.extend_from_slice(&word);
            command.extend_from_slice(b"\r\n");
        }
        server.write_all(&command)?;
    }
}

/// A line with a letter and a number.
fn length(from: &mut impl BufRead, letter: u8) -> io::Result<usize> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let number = line.trim_end().strip_prefix(letter as char).and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn rewrite(words: &mut [Vec<u8>], edit: &Edit, scripts: &mut HashMap<String, String>) {
    let [verb, script, ..] = words else { return };
    let text = String::from_utf8_lossy(script).into_owned();
    if verb.eq_ignore_ascii_case(b"EVAL") {
        let edited = edit(&text);
        scripts.insert(redis::Script::new(&text).get_hash().to_owned(), edited.clone());
        *script = edited.into_bytes();
    } else if verb.eq_ignore_ascii_case(b"EVALSHA")
        && let Some(edited) = scripts.get(&text)
    {
        *verb = b"EVAL".to_vec();
        *script = edited.clone().into_bytes();
    }
}
