//! Queries about endpoints and policies, answered by the agent or from the store alone.

use serde::de::DeserializeOwned;

use super::client::Client;
use super::context::{Context, Globals};
use super::failure::{Exit, Failure};
use crate::agent::{OfflinePolicyView, PolicyView};
use crate::api::status::{API_VERSION, ApiError, List};
use tortie_engine::model::{Model, WatchPart, watch_scope};

/// Source of the answer: the agent, or the store alone.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(super) struct Source {
    /// Answer from the store alone, without the agent
    #[arg(long)]
    pub(super) offline: bool,
}

impl Source {
    /// Queries the agent for `path`, or computes the answer from the store.
    pub(super) async fn ask<T: DeserializeOwned>(
        self,
        context: &Context,
        path: &str,
        make: impl FnOnce(&OfflinePolicyView) -> Result<T, ApiError>,
    ) -> Result<T, Failure> {
        if !self.offline {
            let client = Client::of(&context.globals);
            return client.get(path).await.map_err(|mut failure| {
                if failure.exit == Exit::Unreachable {
                    failure.text.push_str("; --offline answers from the store alone");
                }
                failure
            });
        }
        let node = context.globals.node_name()?;
        let store = super::store::open(&context.globals, false).await?;
        let view = OfflinePolicyView::load(&node, context.globals.data_model, &*store).await?;
        make(&view).map_err(|error| {
            let exit = if error.code == "not-found" { Exit::No } else { Exit::Usage };
            Failure::new(exit, &error.code, error.text)
        })
    }
}

/// Reads the model of a host from the store alone, with its blocks, in either data model.
pub(super) async fn model(globals: &Globals, node: &str) -> Result<Model, Failure> {
    let store = super::store::open(globals, false).await?;
    let mut model = Model::new(node);
    model.set_dialect(globals.data_model.dialect(&*store).await?);
    model.replace(WatchPart::Main, &store.list(&watch_scope(node, globals.data_model)).await?);
    model.replace(WatchPart::Blocks, &store.list(&model.block_scope()).await?);
    Ok(model)
}

/// Creates a list that was computed without an agent.
pub(super) fn list<T>(
    kind: &str,
    offline: &OfflinePolicyView,
    items: impl Fn(&PolicyView<'_>) -> Vec<T>,
) -> List<T> {
    let view = offline.view();
    List {
        api_version: API_VERSION.to_owned(),
        kind: kind.to_owned(),
        node: view.model.node().to_owned(),
        revision: view.model.revision(),
        time: format!("{:.3}", jiff::Timestamp::now()),
        more: false,
        next: None,
        items: items(&view),
    }
}
