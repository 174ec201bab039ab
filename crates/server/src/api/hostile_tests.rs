//! What may come as the body of a request, and in its headers.

use axum::http::{Extensions, HeaderMap, HeaderValue};
use model::{Time, spec::file::SpecFile};
use serde_json::Value;

use super::extract::parse;
use super::{caller, drains, feeds, forward, nodes, services, stores, tokens, volumes};
use crate::view::{CaptureBody, DrainBody, DrainsBody, rfc3339};

#[test]
fn a_body_is_refused_or_understood() {
    hostile::throw!("bodies", |bytes: &[u8]| {
        if let Ok(body) = parse::<DrainBody>(bytes) {
            drop(drains::wanted(body));
        }
        if let Ok(body) = parse::<DrainsBody>(bytes) {
            drop(drains::wanted(body.options));
        }
        drop(parse::<nodes::IntentBody>(bytes));
        drop(parse::<services::CountBody>(bytes));
        drop(parse::<stores::ReplicasBody>(bytes));
        drop(parse::<volumes::HomeBody>(bytes));
        drop(parse::<tokens::TokenBody>(bytes));
        drop(parse::<feeds::FeedStateBody>(bytes));
        drop(parse::<feeds::FeedMoveBody>(bytes));
        drop(parse::<CaptureBody>(bytes));
        drop(parse::<SpecFile>(bytes));
        drop(parse::<Value>(bytes));
    });
}

#[test]
fn whatever_a_header_says_of_who_asked_is_kept_short() {
    hostile::throw!("headers", |bytes: &[u8]| {
        let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
        let headers = HeaderMap::from_iter([(forward::FORWARDED_FOR.parse().unwrap(), value)]);
        assert!(caller::from(&headers, &Extensions::new()).len() <= 300);
    });
}

#[test]
fn every_moment_that_a_record_may_hold_can_be_shown() {
    hostile::bolero::check!().with_iterations(hostile::INPUTS).with_type::<u64>().for_each(|at| {
        drop(rfc3339(Time(*at)));
    });
}
