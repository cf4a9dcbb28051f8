//! A fence stays the same number in every dialect and in JavaScript: as a number, as 15 digits, and in a header.

use std::process::Command;

use leasehold::Fence;

use crate::writer::Writer;

/// Small, today's, a number that a 32-bit integer or float would spoil, and the highest.
const FENCES: [u64; 5] = [1, 4_294_967_297, 459_475_822_995_008, 459_475_822_995_009, Fence::MAX.get()];

fn forms_are_kept(writer: &Writer, text: &str) {
    for number in FENCES {
        let digits = Fence::new(number).to_string();
        // Each form for a resource of its own, so that neither leans on the other.
        for (resource, given) in [("as-number", number.to_string()), ("as-text", format!("'{digits}'"))] {
            let call = writer.call(&format!("'{resource}'"), &given);
            writer.sql(&format!("{}; {call}; COMMIT;", writer.begin())).unwrap();
            let read = |what: &str| {
                writer.sql(&format!("SELECT {what} FROM fences WHERE resource = '{resource}';")).unwrap()
            };
            assert_eq!(read("fence"), number.to_string(), "{writer:?} {given}");
            assert_eq!(read(text), digits, "{writer:?} {given}");
        }
    }
    // One less than the highest is not taken for equal.
    let less = writer.call("'as-number'", &(Fence::MAX.get() - 1).to_string());
    assert!(writer.sql(&format!("{}; {less}; COMMIT;", writer.begin())).is_err());
    for bad in ["0", "-1", "900000000000001", "NULL", "'x'", "''"] {
        let call = writer.call("'bad'", bad);
        assert!(writer.sql(&format!("{}; {call}; COMMIT;", writer.begin())).is_err(), "{writer:?}: {bad}");
    }
    assert_eq!(writer.sql("SELECT count(*) FROM fences WHERE resource = 'bad';").unwrap(), "0");
}

#[test]
fn postgres_keeps_every_form_of_a_fence() {
    let (writer, _behind) = Writer::postgres();
    forms_are_kept(&writer, "to_char(fence, 'FM000000000000000')");
}

#[test]
fn mariadb_keeps_every_form_of_a_fence() {
    let (writer, _behind) = Writer::mariadb();
    forms_are_kept(&writer, "LPAD(fence, 15, '0')");
}

#[test]
fn sqlite_keeps_every_form_of_a_fence() {
    let (writer, _behind) = Writer::sqlite();
    forms_are_kept(&writer, "printf('%015d', fence)");
}

#[test]
fn javascript_numbers_keep_every_form_of_a_fence() {
    // Prints each fence as JSON has it, from a header, as 15 digits, and the one after it.
    let script = "
        for (const digits of process.argv.slice(1)) {
          const parsed = JSON.parse(`{\"fencing_token\":${BigInt(digits)}}`).fencing_token;
          const header = new Headers({ 'Fencing-Token': digits }).get('fencing-token');
          const text = String(parsed).padStart(15, '0');
          console.log(JSON.stringify([parsed, Number(header), text, parsed + 1, Number.isSafeInteger(parsed)]));
        }";
    let digits = FENCES.map(|number| Fence::new(number).to_string());
    let output = Command::new("node").args(["-e", script, "--"]).args(&digits).output();
    let output = output.expect("node is installed: apt-get install nodejs");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), FENCES.len());
    for ((line, number), digits) in lines.lines().zip(FENCES).zip(&digits) {
        assert_eq!(line, format!("[{number},{number},\"{digits}\",{},true]", number + 1));
    }
}
