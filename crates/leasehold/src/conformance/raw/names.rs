//! Checks that different names are different locks: I11.

use crate::backend::{Backend as _, Claim, Mode};
use crate::conformance::trial::{Shown, Trial, busy, done, granted};
use crate::conformance::{check_list, ensure};
use crate::lease_id::LeaseId;
use crate::name::Name;

check_list! { Raw:
    names_that_look_alike_are_names_of_their_own => "I11";
    normal_forms_of_one_name_are_one_name => "I11";
    names_may_have_512_bytes => "I11";
    namespaces_never_meet => "I11", Namespaced;
}

/// Holds all of them at once: each is free for its own claim, and held after it.
async fn all_at_once(t: &Trial, names: &[Name]) -> Shown {
    let claims: Vec<Claim> = names.iter().map(|name| t.claim(name, Mode::Exclusive)).collect();
    for claim in &claims {
        granted(t.a.try_acquire(claim).await)?;
    }
    for claim in &claims {
        busy(t.b.try_acquire(&t.claim(&claim.name, Mode::Exclusive)).await)?;
        // The answer says which name it is about; `view` compares it.
        let info = t.b.view(&claim.name).await?;
        ensure!(info.holders.len() == 1, "{:?} is held, and shown is {info:?}", claim.name);
    }
    for claim in &claims {
        done(t.a.end(claim).await)?;
        ensure!(!t.b.is_held(&claim.name).await?, "{:?} was released and is held", claim.name);
    }
    Ok(())
}

async fn names_that_look_alike_are_names_of_their_own(t: Trial) -> Shown {
    let tag = LeaseId::random();
    let tag = tag.expose();
    let ends = [
        "",
        " ",
        "  ",
        ".",
        "..",
        "/",
        "//",
        "/.",
        "/..",
        "/../x",
        "\0",
        "\0\0",
        "%",
        "%00",
        "%25",
        "%2F",
        "{}",
        "{x}",
        "}",
        ":",
        "::",
        ":fence",
        ":queue",
        "*",
        "?",
        "_",
        "\\",
        "'",
        "\"",
        "`",
        ";",
        "--",
        "$1",
        "#",
        "&",
        "\n",
        "\t",
        "\u{7f}",
        "x",
        "X",
        "é",
        "É",
        "\u{1f512}",
        "\u{1f513}",
        "\u{fe0f}",
        "\u{200b}",
        "ß",
        "ss",
        "ı",
        "i",
        "I",
        "İ",
    ];
    let mut names: Vec<Name> = ends.iter().map(|end| t.exactly(&format!("{tag}{end}"))).collect();
    names.extend([" ", ".", "/", "%", ":"].map(|begin| t.exactly(&format!("{begin}{tag}"))));
    names.push(t.exactly(&tag.to_lowercase().replace(|c: char| c.is_ascii_digit(), "q")));
    names.push(t.exactly(&tag.to_uppercase().replace(|c: char| c.is_ascii_digit(), "q")));
    names.sort_unstable();
    names.dedup();
    for names in names.chunks(20) {
        all_at_once(&t, names).await?;
    }
    // Neighbours from different lists too: these are confused most often.
    let pairs = [("", " "), ("", "."), ("x", "X"), ("", "\0"), ("/", "%2F"), ("%", "%25"), ("ss", "ß")];
    for (one, other) in pairs {
        let pair = [one, other].map(|end| t.exactly(&format!("{tag}{end}")));
        all_at_once(&t, &pair).await?;
    }
    Ok(())
}

async fn normal_forms_of_one_name_are_one_name(t: Trial) -> Shown {
    let tag = t.name();
    for (composed, decomposed) in
        [("caf\u{e9}", "cafe\u{301}"), ("\u{212b}", "A\u{30a}"), ("\u{ac00}", "\u{1100}\u{1161}")]
    {
        let [one, other] = [composed, decomposed].map(|end| t.exactly(&format!("{tag}{end}")));
        let claim = t.claim(&one, Mode::Exclusive);
        granted(t.a.try_acquire(&claim).await)?;
        busy(t.b.try_acquire(&t.claim(&other, Mode::Exclusive)).await)?;
        ensure!(t.b.is_held(&other).await?, "{one:?} is held, and {other:?} is not");
        done(t.a.end(&claim).await)?;
        granted(t.b.try_acquire(&t.claim(&other, Mode::Exclusive)).await)?;
    }
    Ok(())
}

async fn names_may_have_512_bytes(t: Trial) -> Shown {
    let tag = t.name();
    let fill = |with: &str, end: &str| {
        let room = Name::MAX_BYTES - tag.as_str().len() - end.len();
        t.exactly(&format!("{tag}{}{end}", with.repeat(room / with.len())))
    };
    // They differ at the very end, which a store that cuts or hashes carelessly ignores.
    let names = [
        fill("x", "1"),
        fill("x", "2"),
        fill("\u{1f512}", "1"),
        fill("\u{1f512}", "2"),
        fill("%", "1"),
        fill("/", "1"),
    ];
    all_at_once(&t, &names).await
}

async fn namespaces_never_meet(t: Trial) -> Shown {
    let tag = LeaseId::random();
    let tag = tag.expose();
    let pairs = [
        (format!("{tag}/b"), "c"),
        (tag.to_owned(), "b/c"),
        (format!("{tag}%2Fb"), "c"),
        (format!("{tag}:b"), "c"),
        (tag.to_owned(), "b:c"),
        (tag.to_owned(), "c"),
        (format!("{tag}%"), "2Fb/c"),
        (format!("{tag}x"), "c"),
        (String::new(), tag),
        (tag.to_owned(), tag),
    ];
    let mut names = Vec::new();
    for (namespace, name) in pairs {
        names.push(Name::within(&namespace, name)?);
    }
    all_at_once(&t, &names).await
}
