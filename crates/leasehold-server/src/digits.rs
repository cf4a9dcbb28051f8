//! Fast formatting of numbers for what every request writes; `fmt` takes several times as long.

/// Digits of the largest `u64`.
pub(crate) const MOST: usize = 20;

/// A number as text.
pub(crate) struct Digits {
    text: [u8; MOST],
    start: usize,
}

impl Digits {
    pub(crate) fn of(mut number: u64) -> Self {
        let mut digits = Digits { text: [b'0'; MOST], start: MOST };
        loop {
            digits.start -= 1;
            digits.text[digits.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_everybody_writes_them() {
        for number in [0, 1, 9, 10, 99, 100, 1_793_000_000_000, u64::MAX - 1, u64::MAX] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
