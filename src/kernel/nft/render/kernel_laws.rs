//! The kernel takes every change that the renderer makes, and then has what is wanted.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::worlds::{Step, difference, step, world};
use super::*;
use crate::kernel::nft::kernel_tests::{contents, found, in_netns, nft, taken, wanted};
use crate::kernel::nft::socket::Socket;
use crate::kernel::nft::text;

const OPTIONS: Options = Options { log_group: Some(5), deny_group: 179 };

#[test]
fn the_kernel_follows_change_by_change() {
    let nft = nft();
    in_netns(move || {
        let mut runner =
            TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
        let history = proptest::collection::vec(proptest::collection::vec(step(), 1..4), 1..8);
        let result = runner.run(&(world(), history), |(mut world, history)| {
            let mut socket = Socket::open().unwrap();
            let mut renderer = Renderer::new(OPTIONS);
            let mut before = Ruleset::default();
            let mut texts = String::new();
            for steps in std::iter::once(Vec::new()).chain(history) {
                let first = renderer.globals.is_none();
                steps.iter().for_each(|step| world.apply(step));
                let now = world.ruleset();
                let moved = |what: fn(&Step) -> bool| first || steps.iter().any(what);
                let globals = moved(|step| matches!(step, Step::Globals(_))).then_some(&world.globals);
                let hosts = moved(|step| matches!(step, Step::Hosts(_))).then_some(&world.hosts);
                let edits = renderer.take(&difference(&before, &now), globals, hosts);
                if let Err(error) = socket.batch(&edits, "t") {
                    return Err(TestCaseError::fail(format!("{error:?} {edits:#?}")));
                }
                prop_assert_eq!(contents(&found(&mut socket)), wanted(renderer.table()));
                texts = text::table(renderer.table(), "t");
                before = now;
            }
            if let Some(nft) = &nft {
                taken(nft, &format!("delete table inet t\n{texts}"));
            }
            socket.batch(&[Edit::NoTable], "t").unwrap();
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}
