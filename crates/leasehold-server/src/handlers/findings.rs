//! `/v1/findings`: how the server's store is set up. Only the server can see that, so clients ask it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use leasehold::doctor::{self, Finding};
use leasehold::{Error, ErrorKind, wire};

use crate::app::App;
use crate::look::Look;
use crate::middleware::Caller;
use crate::problem::{Refusal, json};
use crate::token::Verb;

/// How long one examination may take: it connects to all nodes of a quorum.
const LOOK: Duration = Duration::from_secs(10);

/// How long an answer is reused. Each examination opens connections, and a store's setup changes less often than this.
const FRESH: Duration = Duration::from_secs(2);

/// Examines how a store is set up.
pub struct Examiner {
    url: String,
    last: Look<Vec<Finding>>,
}

impl Examiner {
    /// Examines the store at this URL, as [`doctor::examine`] does.
    pub fn new(url: impl Into<String>) -> Self {
        Examiner { url: url.into(), last: Look::fresh_for(FRESH) }
    }

    async fn look(&self, app: &App) -> Result<Vec<Finding>, Refusal> {
        self.last.answer(app, || examine(self.url.clone())).await
    }
}

async fn examine(url: String) -> Result<Vec<Finding>, Refusal> {
    let late = |_| Error::new(ErrorKind::NetworkTimeout, "the store did not answer in time");
    Ok(tokio::time::timeout(LOOK, doctor::examine(&url)).await.map_err(late)??)
}

impl fmt::Debug for Examiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Examiner").finish_non_exhaustive()
    }
}

pub(crate) async fn route(State(app): State<Arc<App>>, mut request: Request<Body>) -> Response<Body> {
    let caller = Caller::of(&mut request);
    let answer = async {
        caller.may(Verb::Read, "")?;
        let Some(examiner) = &app.settings.examiner else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "NOT_KNOWN",
                "this server does not look at its store",
            ));
        };
        Ok(json(StatusCode::OK, &wire::Findings { findings: examiner.look(&app).await? }))
    };
    answer.await.unwrap_or_else(Refusal::response)
}
