//! A record: the one value that a function with several results returns.

use std::error::Error;

use tokio_postgres::types::{FromSql, Type};

/// The fields of a record, with their types.
pub(super) struct Record<'a>(Vec<(Type, Option<&'a [u8]>)>);

impl<'a> Record<'a> {
    /// A field; its value is None if it is null.
    pub(super) fn field(&self, index: usize) -> Option<(&Type, Option<&'a [u8]>)> {
        self.0.get(index).map(|(kind, value)| (kind, *value))
    }
}

impl<'a> FromSql<'a> for Record<'a> {
    fn from_sql(_: &Type, mut raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let count = usize::try_from(number(&mut raw)?)?;
        // Not reserved in advance: the number comes from outside and may be wrong.
        let mut fields = Vec::new();
        for _ in 0..count {
            let kind = number(&mut raw)?.cast_unsigned();
            let kind = Type::from_oid(kind).ok_or("a field of a type that the server does not come with")?;
            // -1 is null.
            let value = match usize::try_from(number(&mut raw)?) {
                Ok(length) => {
                    let (value, rest) = raw.split_at_checked(length).ok_or("a field that is cut off")?;
                    raw = rest;
                    Some(value)
                }
                Err(_) => None,
            };
            fields.push((kind, value));
        }
        Ok(Record(fields))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::RECORD
    }
}

fn number(raw: &mut &[u8]) -> Result<i32, &'static str> {
    let (number, rest) = raw.split_first_chunk().ok_or("a record that is cut off")?;
    *raw = rest;
    Ok(i32::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: [u8; 27] = [
        0, 0, 0, 2, // two fields
        0, 0, 0, 20, 0xff, 0xff, 0xff, 0xff, // a bigint that is null
        0, 0, 0, 25, 0, 0, 0, 7, b'g', b'r', b'a', b'n', b't', b'e', b'd', // a text
    ];

    #[test]
    fn fields_are_read_with_their_types() {
        let record = Record::from_sql(&Type::RECORD, &RAW).unwrap();
        assert_eq!(record.field(0), Some((&Type::INT8, None)));
        assert_eq!(record.field(1), Some((&Type::TEXT, Some(&b"granted"[..]))));
        assert_eq!(record.field(2), None);
    }

    #[test]
    fn a_record_that_is_cut_off_is_an_error() {
        for length in 0..RAW.len() {
            assert!(Record::from_sql(&Type::RECORD, &RAW[..length]).is_err(), "{length}");
        }
    }
}
