//! The kernel accepts every change by the renderer, and then has the desired table.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::nft::ir::Edit;
use crate::nft::render::renderer::Renderer;
use crate::nft::render::tests::generators::{step, world};
use crate::nft::render::tests::properties::apply_history;
use crate::nft::socket::Socket;
use crate::nft::tests::kernel::{contents, desired, found, in_netns, nft, taken};
use crate::nft::text;

#[test]
fn the_kernel_follows_change_by_change() {
    let nft = nft();
    in_netns(move || {
        let mut runner =
            TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
        let history = proptest::collection::vec(proptest::collection::vec(step(), 1..4), 1..8);
        let result = runner.run(&(world(), history), |(world, history)| {
            let mut socket = Socket::open().unwrap();
            // A failed case may have left a table.
            socket.batch(&[Edit::DeleteTable], "t").unwrap();
            let mut sent = Ok(());
            let (_, renderer) = apply_history(world, history, 1, |_, edits, renderer| {
                if sent.is_ok() {
                    sent = follow(&mut socket, edits, renderer);
                }
            });
            sent?;
            let texts = text::table(renderer.table(), "t");
            if let Some(nft) = &nft {
                taken(nft, &format!("delete table inet t\n{texts}"));
            }
            socket.batch(&[Edit::DeleteTable], "t").unwrap();
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

/// Several changes in one transaction, as in a burst.
#[test]
fn the_kernel_follows_several_changes_at_once() {
    in_netns(|| {
        let mut runner =
            TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
        let history = proptest::collection::vec(proptest::collection::vec(step(), 1..3), 3..16);
        let result = runner.run(&(world(), history), |(world, history)| {
            let mut socket = Socket::open().unwrap();
            // A failed case may have left a table.
            socket.batch(&[Edit::DeleteTable], "t").unwrap();
            let mut sent = Ok(());
            // The first one alone, then three at a time.
            apply_history(world, history, 3, |_, edits, renderer| {
                if sent.is_ok() {
                    sent = follow(&mut socket, edits, renderer);
                }
            });
            sent?;
            socket.batch(&[Edit::DeleteTable], "t").unwrap();
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

/// Applies edits and compares the kernel's table with the desired one.
fn follow(socket: &mut Socket, edits: &[Edit], renderer: &Renderer) -> Result<(), TestCaseError> {
    if let Err(error) = socket.batch(edits, "t") {
        return Err(TestCaseError::fail(format!("{error:?} {edits:#?}")));
    }
    prop_assert_eq!(contents(&found(socket)), desired(renderer.table()));
    Ok(())
}
