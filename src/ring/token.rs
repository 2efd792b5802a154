//! What an operation's user data says: which kind, which slot, which generation of that slot. Floor 3.

/// The kinds of operation the ring is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Recv,
    Send,
    Close,
    Cancel,
    Connect,
    Accept,
    Tick,
    ParkTimer,
    Bell,
    Alarm,
    File,
    Room,
}

impl Op {
    const ALL: [Op; 12] = [
        Op::Recv,
        Op::Send,
        Op::Close,
        Op::Cancel,
        Op::Connect,
        Op::Accept,
        Op::Tick,
        Op::ParkTimer,
        Op::Bell,
        Op::Alarm,
        Op::File,
        Op::Room,
    ];
}

/// A generation counts the lives of a slot, so that a late completion never reaches the slot's next owner.
pub(super) type Generation = u32;

/// Generations are kept to 24 bits: a completion would have to be late by 16 million lives to be mistaken.
pub(super) const fn next_generation(generation: Generation) -> Generation {
    (generation + 1) & 0xff_ffff
}

/// User data: op in the top 8 bits, generation in the next 24, slot in the low 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) op: Op,
    pub(super) generation: Generation,
    pub(super) slot: u32,
}

impl Token {
    /// An operation of which there is one a ring.
    pub(super) const fn single(op: Op) -> Self {
        Token { op, generation: 0, slot: 0 }
    }

    pub(super) const fn encode(self) -> u64 {
        (self.op as u64) << 56 | (self.generation as u64) << 32 | self.slot as u64
    }

    /// # Panics
    /// On user data that [`Token::encode`] did not make.
    pub(super) fn decode(data: u64) -> Self {
        let op = Op::ALL[(data >> 56) as usize];
        Token { op, generation: (data >> 32) as u32 & 0xff_ffff, slot: data as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_survives_encoding_at_its_bounds() {
        for (index, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, index);
            for (generation, slot) in [(0, 0), (0xff_ffff, u32::MAX), (1, 7)] {
                let token = Token { op, generation, slot };
                assert_eq!(Token::decode(token.encode()), token);
            }
        }
    }

    #[test]
    fn generation_wraps_inside_its_bits() {
        assert_eq!(next_generation(0xff_ffff), 0);
        assert_eq!(next_generation(5), 6);
    }
}
