//! The control packet of RFC 5880 4.1 octet by octet, and each check of 6.8.6 that does not depend on a
//! session.

use tortie_bgp::bfd::{Diagnostic, Packet, Refused, State};

/// Version 1, diagnostic 7, Up, P and C bits, multiplier 3; encoded by hand from the figure in RFC 5880 4.1.
const GOOD: [u8; 24] = [
    0x27, 0xe8, 0x03, 0x18, 0x01, 0x02, 0x03, 0x04, 0xa1, 0xa2, 0xa3, 0xa4, 0x00, 0x04, 0x93, 0xe0, 0x00,
    0x00, 0xc3, 0x50, 0x00, 0x00, 0x00, 0x01,
];

fn good() -> Packet {
    Packet {
        diagnostic: Diagnostic(7),
        state: State::Up,
        poll: true,
        r#final: false,
        independent: true,
        demand: false,
        multiplier: 3,
        my_discriminator: 0x0102_0304,
        your_discriminator: 0xa1a2_a3a4,
        desired_min_tx: 300_000,
        required_min_rx: 50_000,
        required_min_echo_rx: 1,
    }
}

fn with(at: usize, octet: u8) -> Vec<u8> {
    let mut bytes = GOOD.to_vec();
    bytes[at] = octet;
    bytes
}

#[test]
fn octets_stand_where_the_figure_has_them() {
    assert_eq!(Packet::decode(&GOOD), Ok(good()));
    assert_eq!(good().encode(), GOOD);
}

#[test]
fn flags_and_states_have_their_bits() {
    for (bits, state) in [(0, State::AdminDown), (1, State::Down), (2, State::Init), (3, State::Up)] {
        let packet = Packet::decode(&with(1, bits << 6)).unwrap();
        assert_eq!(packet.state, state);
        assert!(!(packet.poll || packet.r#final || packet.independent || packet.demand));
    }
    let packet = Packet::decode(&with(1, 0xd2)).unwrap();
    assert!(packet.r#final && packet.demand && !packet.poll && !packet.independent);
}

#[test]
fn what_is_wrong_is_named() {
    let mut zero_mine = GOOD.to_vec();
    zero_mine[4..8].fill(0);
    let mut zero_yours = GOOD.to_vec();
    zero_yours[8..12].fill(0);
    let mut authenticated = with(1, 0xc4);
    authenticated.extend([1, 2]);
    authenticated[3] = 26;
    let table: Vec<(Vec<u8>, Refused)> = vec![
        (Vec::new(), Refused::Length),
        (GOOD[..3].to_vec(), Refused::Length),
        (GOOD[..23].to_vec(), Refused::Length),
        (with(3, 23), Refused::Length),
        (with(3, 25), Refused::Length),
        (with(0, 0x07), Refused::Version),
        (with(0, 0x47), Refused::Version),
        (with(2, 0), Refused::Multiplier),
        (with(1, 0xc1), Refused::Multipoint),
        (zero_mine, Refused::Discriminator),
        (zero_yours.clone(), Refused::Discriminator),
        // With the A bit, at least 26 octets are required.
        (with(1, 0xc4), Refused::Length),
        (authenticated, Refused::Authentication),
    ];
    for (bytes, why) in table {
        assert_eq!(Packet::decode(&bytes), Err(why), "{bytes:02x?}");
    }
    // A packet in Down or AdminDown may have Your Discriminator 0.
    for bits in [0x00, 0x40] {
        zero_yours[1] = bits;
        assert!(Packet::decode(&zero_yours).is_ok());
    }
}

#[test]
fn octets_behind_the_packet_are_ignored() {
    let mut long = GOOD.to_vec();
    long.extend([0xff; 30]);
    assert_eq!(Packet::decode(&long), Ok(good()));
}
