//! Who may be in office: a closed node only if no open candidate lives.

/// A candidate whose own node is closed leaves the office to an open one, if one lives; otherwise it leads all the
/// same, as a caretaker. `alive` are the candidates that the store has heard of lately.
pub fn others_should_lead<'a>(
    me: &str,
    alive: impl IntoIterator<Item = &'a str>,
    is_closed: impl Fn(&str) -> bool,
) -> bool {
    is_closed(me) && alive.into_iter().any(|other| other != me && !is_closed(other))
}
