use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn sel(text: &str) -> Selector {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn documented_selectors_decide_as_documented() {
    // Selector, labels, result: the examples in the data model's document, and every rule of the grammar.
    let a_b: &[(&str, &str)] = &[("a", "b")];
    let web: &[(&str, &str)] = &[("type", "webserver"), ("deployment", "prod")];
    let none: &[(&str, &str)] = &[];
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);
    let table: &[Case<'_>] = &[
        ("type == \"webserver\" && deployment == \"prod\"", web, true),
        ("type == \"webserver\" && deployment == \"dev\"", web, false),
        ("type in {\"frontend\", \"backend\"}", &[("type", "backend")], true),
        ("type in {\"frontend\", \"backend\"}", web, false),
        ("deployment != \"dev\"", web, true),
        ("! has(label_name)", web, true),
        ("! has(label_name)", &[("label_name", "")], false),
        ("", none, true),
        (" \t ", none, true),
        ("all()", none, true),
        ("all( \t)", none, true),
        ("!all()", a_b, false),
        // White space and quotes.
        ("a==\"b\"", a_b, true),
        ("\ta\t==\t'b'\t", a_b, true),
        ("a == ''", &[("a", "")], true),
        ("a == ''", none, false),
        ("a == \"it's\"", &[("a", "it's")], true),
        ("a == 'say \"x\"'", &[("a", "say \"x\"")], true),
        ("a == \"\\\"", &[("a", "\\")], true),
        ("a == \"two\nlines\"", &[("a", "two\nlines")], true),
        ("a == \"ä\"", &[("a", "ä")], true),
        // Operator precedence.
        ("!a == \"b\" && c == \"d\"", &[("a", "x"), ("c", "d")], true),
        ("!a == \"b\" && c == \"d\"", &[("a", "x"), ("c", "e")], false),
        ("!(a == \"b\" && c == \"d\")", &[("a", "x"), ("c", "e")], true),
        ("!!a == \"b\"", a_b, true),
        ("! ! !a == \"b\"", a_b, false),
        ("has(x) && has(y) || has(a)", a_b, true),
        ("has(a) || has(x) && has(y)", a_b, true),
        ("(has(a) || has(x)) && has(y)", a_b, false),
        // Sets.
        ("a in {}", a_b, false),
        ("a not in {}", a_b, true),
        ("a not in {}", none, true),
        ("a in {'b',}", a_b, true),
        ("a in{'b'}", a_b, true),
        ("a notin {'b'}", a_b, false),
        ("a not in {'c'}", a_b, true),
        ("a not\t in {'c', \"b\" , 'b'}", a_b, false),
        // Missing labels and empty values.
        ("x == \"b\"", a_b, false),
        ("x in {\"b\"}", a_b, false),
        ("has(x)", a_b, false),
        ("x != \"b\"", a_b, true),
        ("x not in {\"b\"}", a_b, true),
        ("has(x)", &[("x", "")], true),
        ("x in {\"\"}", &[("x", "")], true),
        // Label names.
        ("has( \ta )", a_b, true),
        ("has(in)", &[("in", "1")], true),
        ("has(notin)", &[("notin", "1")], true),
        ("inner == \"x\"", &[("inner", "x")], true),
        ("in_x == \"x\"", &[("in_x", "x")], true),
        ("not.in == \"x\"", &[("not.in", "x")], true),
        ("not == \"x\"", &[("not", "x")], true),
        ("has == \"x\"", &[("has", "x")], true),
        ("all == \"x\"", &[("all", "x")], true),
        ("has in {\"x\"}", &[("has", "x")], true),
        ("org.example/a-b_c.1 == \"x\"", &[("org.example/a-b_c.1", "x")], true),
        ("-/. == 'x'", &[("-/.", "x")], true),
    ];
    for (text, given, wanted) in table {
        let selector = sel(text);
        assert_eq!(selector.matches(&labels(given)), *wanted, "{text} on {given:?}");
        assert_eq!(selector.matches(*given), *wanted, "{text} on a slice");
        let canonical = selector.to_string();
        assert_eq!(sel(&canonical), selector, "{text} and its canonical text {canonical}");
    }
}

#[test]
fn bad_selectors_name_the_place() {
    // Selector, byte offset, column, part of the message.
    let long = format!("has({})", "x".repeat(513));
    let table: &[(&str, usize, usize, &str)] = &[
        ("a", 1, 2, "`==`, `!=`, `in` or `not in` after the label, found the end"),
        ("a ==", 4, 5, "a string in quotes, found the end"),
        ("a == b", 5, 6, "a string in quotes, found `b`"),
        ("a = \"b\"", 2, 3, "expected `==`"),
        ("a == \"b", 5, 6, "no closing quote"),
        ("a == \"b'", 5, 6, "no closing quote"),
        ("a == \"b\" & has(c)", 9, 10, "`&&`"),
        ("a == \"b\" | has(c)", 9, 10, "`||`"),
        ("a == \"b\" has(c)", 9, 10, "`&&`, `||` or the end of the selector, found `has(c)`"),
        ("a == \"b\" &&", 11, 12, "a label"),
        ("|| a == \"b\"", 0, 1, "a label"),
        ("a == \"b\"\n", 8, 9, "white space is blank and tab"),
        ("a\n== \"b\"", 1, 2, "'\\n'"),
        ("has(a\n)", 5, 6, "`)` after the label name"),
        ("a not\nin {}", 2, 3, "found `not`"),
        ("a in \"b\"", 5, 6, "`{`"),
        ("a in (\"b\")", 5, 6, "`{`"),
        ("a in {,}", 6, 7, "a string in quotes or `}`"),
        ("a in {, \"b\"}", 6, 7, "a string in quotes or `}`"),
        ("a in {\"b\",,}", 10, 11, "a string in quotes or `}`"),
        ("a in {\"b\" \"c\"}", 10, 11, "`,` or `}`"),
        ("a in {\"b\"", 9, 10, "`,` or `}`"),
        ("a in {b}", 6, 7, "a string in quotes or `}`, found `b`"),
        ("a not {\"b\"}", 2, 3, "found `not`"),
        ("has (a)", 4, 5, "after the label, found `(`"),
        ("all ()", 4, 5, "after the label, found `(`"),
        ("has()", 4, 5, "a label name"),
        ("has(a b)", 6, 7, "`)` after the label name, found `b`"),
        ("has(a", 5, 6, "`)` after the label name, found the end"),
        ("all(a)", 4, 5, "all() has no argument"),
        ("in == \"x\"", 0, 1, "the operator `in`"),
        ("in.x == \"x\"", 0, 1, "the operator `in`"),
        ("notin == \"x\"", 0, 1, "the operator `not in`"),
        ("not in == \"x\"", 0, 1, "the operator `not in`"),
        ("()", 1, 2, "a label"),
        ("(a == \"b\"", 9, 10, "`&&`, `||` or `)`"),
        ("a == \"b\")", 8, 9, "the end of the selector, found `)`"),
        ("not in {\"x\"}", 0, 1, "the operator `not in`"),
        ("!", 1, 2, "a label"),
        ("\"a\" == \"b\"", 0, 1, "a label"),
        ("ä == \"b\"", 0, 1, "a label"),
        ("a == \"ä\" ?", 10, 10, "found `?`"),
        (&long, 4, 5, "at most 512"),
    ];
    for (text, offset, column, part) in table {
        let error = Selector::parse_v1(text).expect_err(text);
        assert_eq!((error.offset, error.column), (*offset, *column), "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    assert!(Selector::parse_v1(&long.replace("xx)", "x)")).is_ok());
}

#[test]
fn selectors_of_calico_3_decide_as_documented() {
    // Selector, labels, result: what v1's grammar lacks.
    let none: &[(&str, &str)] = &[];
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);
    let table: &[Case<'_>] = &[
        ("a contains 'b'", &[("a", "xby")], true),
        ("a contains 'b'", &[("a", "b")], true),
        ("a contains 'b'", &[("a", "x")], false),
        ("a contains 'b'", &[("b", "b")], false),
        ("a contains ''", &[("a", "")], true),
        ("a contains ''", none, false),
        ("!a contains 'b'", none, true),
        ("a contains\"b\"", &[("a", "b")], true),
        ("a starts with 'ab'", &[("a", "abc")], true),
        ("a starts with 'ab'", &[("a", "xab")], false),
        ("a startswith 'ab'", &[("a", "ab")], true),
        ("a starts \t with 'ab'", &[("a", "ab")], true),
        ("a ends with 'bc'", &[("a", "abc")], true),
        ("a ends with 'bc'", &[("a", "bcx")], false),
        ("a endswith 'bc'", &[("a", "bc")], true),
        ("global()", none, true),
        ("global( )", &[("a", "b")], true),
        ("!global()", none, false),
        // An operator in words is one only after a label.
        ("in == 'x'", &[("in", "x")], true),
        ("in in {'x'}", &[("in", "x")], true),
        ("in.x == 'x'", &[("in.x", "x")], true),
        ("notin == 'x'", &[("notin", "x")], true),
        ("not in {'x'}", &[("not", "x")], true),
        ("not not in {'x'}", &[("not", "x")], false),
        ("contains contains 'contains'", &[("contains", "contains")], true),
        ("startswith starts with 's'", &[("startswith", "s")], true),
        ("endswith ends with 's'", &[("endswith", "s")], true),
        ("starts == 'x'", &[("starts", "x")], true),
        ("global == 'x'", &[("global", "x")], true),
        ("has(global)", &[("global", "x")], true),
    ];
    for (text, given, wanted) in table {
        let selector = sel(text);
        assert_eq!(selector.matches(*given), *wanted, "{text} on {given:?}");
        assert_eq!(sel(&selector.to_string()), selector, "{text} and its canonical text {selector}");
        assert!(Selector::parse_v1(text).is_err() || !text.contains("with"), "{text}");
    }
    for text in ["a contains 'b'", "a starts with 'b'", "a ends with 'b'", "global()", "in == 'x'"] {
        assert!(Selector::parse_v1(text).is_err(), "{text}");
    }
}

#[test]
fn bad_selectors_of_calico_3_name_the_place() {
    let table: &[(&str, usize, &str)] = &[
        ("a", 1, "`starts with` or `ends with` after the label, found the end"),
        ("a b", 2, "after the label, found `b`"),
        ("b contains b", 11, "a string in quotes, found `b`"),
        ("b contains {'b'}", 11, "a string in quotes, found `{`"),
        ("label inf 'x'", 6, "after the label, found `inf`"),
        ("label Contains 'x'", 6, "after the label, found `Contains`"),
        ("label starts foo 'x'", 6, "found `starts`"),
        ("label ends within 'x'", 6, "found `ends`"),
        ("label containsx 'x'", 6, "found `containsx`"),
        ("label contains.x 'x'", 6, "found `contains.x`"),
        ("label not 'x'", 6, "found `not`"),
        ("a in 'b'", 5, "`{`"),
        ("a has(b)", 2, "found `has`"),
        ("global(", 7, "global() has no argument"),
        ("global(a)", 7, "global() has no argument"),
        ("global ()", 7, "after the label, found `(`"),
        ("all(", 4, "all() has no argument"),
        ("%", 0, "a label"),
        ("a == 'b' contains 'c'", 9, "the end of the selector, found `contains`"),
    ];
    for (text, offset, part) in table {
        let error = text.parse::<Selector>().expect_err(text);
        assert_eq!(error.offset, *offset, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}

#[test]
fn a_prefix_comes_before_each_label() {
    for (text, prefixed) in [
        ("k == 'v'", "p.k == \"v\""),
        ("k starts with 'v' || has(x)", "(p.k starts with \"v\" || has(p.x))"),
        ("!(k == 'v' && all()) && a not in {'b'}", "(!(p.k == \"v\" && all()) && p.a not in {\"b\"})"),
        ("global()", "global()"),
    ] {
        assert_eq!(sel(text).prefixed("p.").to_string(), prefixed);
    }
}

#[test]
fn canonical_text_is_grouped_sorted_and_double_quoted() {
    let table = [
        ("", "all()"),
        ("all( )", "all()"),
        ("a=='b'", "a == \"b\""),
        ("a=='say \"x\"'", "a == 'say \"x\"'"),
        ("a != 'b'", "a != \"b\""),
        ("a in {'c', \"b\",'c'}", "a in {\"b\", \"c\"}"),
        ("a notin {}", "a not in {}"),
        ("has( a )", "has(a)"),
        ("!!! has(a)", "!has(a)"),
        ("!(!has(a))", "has(a)"),
        ("((has(a)))", "has(a)"),
        ("has(a) && has(b) || has(c)", "((has(a) && has(b)) || has(c))"),
        ("has(a) && (has(b) || !(has(c) && has(d)))", "(has(a) && (has(b) || !(has(c) && has(d))))"),
        ("has(a) && has(b) && has(c)", "(has(a) && has(b) && has(c))"),
        ("global( )", "global()"),
        ("a startswith '\"'", "a starts with '\"'"),
        ("a  ends  with 'x'", "a ends with \"x\""),
        ("a contains'x'", "a contains \"x\""),
    ];
    for (text, canonical) in table {
        assert_eq!(sel(text).to_string(), canonical, "{text}");
        assert_eq!(sel(canonical).to_string(), canonical);
    }
}

#[test]
fn depth_is_bounded_and_length_is_not() {
    let nested = |n: usize| format!("{}has(a){}", "(".repeat(n), ")".repeat(n));
    assert!(nested(MAX_DEPTH).parse::<Selector>().is_ok());
    let error = nested(100_000).parse::<Selector>().expect_err("too deep");
    assert_eq!(error.kind, SelectorErrorKind::TooDeep);
    assert_eq!(error.offset, MAX_DEPTH);

    let empty = labels(&[]);
    assert!(format!("{}has(a)", "!".repeat(100_001)).parse::<Selector>().unwrap().matches(&empty));
    let long = vec!["!has(a)"; 100_000].join(" && ");
    assert!(sel(&long).matches(&empty));
    // The deepest possible tree: every level adds a negation and a group.
    let mut text = "has(a)".to_owned();
    for _ in 0..MAX_DEPTH {
        text = format!("!({text} && has(b))");
    }
    let deep = sel(&text);
    assert!(deep.matches(&empty));
    assert_eq!(sel(&deep.to_string()), deep);
}

#[test]
fn tags_become_has() {
    assert_eq!(Selector::has("web"), Some(sel("has(web)")));
    for bad in ["", "a b", "a)", &"x".repeat(513)] {
        assert_eq!(Selector::has(bad), None, "{bad}");
    }
}

const NAMES: [&str; 5] = ["a", "b.c/d", "inner", "not", "has"];
const VALUES: [&str; 5] = ["", "x", "y", "it's", "say \"x\""];

fn expr() -> impl Strategy<Value = Expr> {
    let name = || prop::sample::select(&NAMES[..]).prop_map(Box::<str>::from);
    let value = || prop::sample::select(&VALUES[..]).prop_map(Box::<str>::from);
    let set = || {
        prop::collection::btree_set(prop::sample::select(&VALUES[..]).prop_map(Box::<str>::from), 0..4)
            .prop_map(|s| s.into_iter().collect::<Box<[_]>>())
    };
    let leaf = prop_oneof![
        Just(Expr::All),
        name().prop_map(Expr::Has),
        (name(), value()).prop_map(|(n, v)| Expr::Eq(n, v)),
        (name(), value()).prop_map(|(n, v)| Expr::Ne(n, v)),
        (name(), value()).prop_map(|(n, v)| Expr::Contains(n, v)),
        (name(), value()).prop_map(|(n, v)| Expr::StartsWith(n, v)),
        (name(), value()).prop_map(|(n, v)| Expr::EndsWith(n, v)),
        Just(Expr::Global),
        (name(), set()).prop_map(|(n, v)| Expr::In(n, v)),
        (name(), set()).prop_map(|(n, v)| Expr::NotIn(n, v)),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|e| match e {
                Expr::Not(e) => *e,
                e => Expr::Not(Box::new(e)),
            }),
            prop::collection::vec(inner.clone(), 2..4).prop_map(|l| Expr::And(l.into())),
            prop::collection::vec(inner, 2..4).prop_map(|l| Expr::Or(l.into())),
        ]
    })
}

/// Reference evaluation over a map that shares no code with [`Expr::matches`].
fn truth(expr: &Expr, map: &BTreeMap<String, String>) -> bool {
    let value = |n: &str| map.get(n).cloned();
    match expr {
        Expr::All | Expr::Global => true,
        Expr::Contains(n, v) => value(n).is_some_and(|x| x.contains(&**v)),
        Expr::StartsWith(n, v) => value(n).is_some_and(|x| x.starts_with(&**v)),
        Expr::EndsWith(n, v) => value(n).is_some_and(|x| x.ends_with(&**v)),
        Expr::Has(n) => map.contains_key(&**n),
        Expr::Eq(n, v) => value(n).is_some_and(|x| *x == **v),
        Expr::Ne(n, v) => value(n).is_none_or(|x| *x != **v),
        Expr::In(n, set) => value(n).is_some_and(|x| set.iter().any(|v| **v == *x)),
        Expr::NotIn(n, set) => value(n).is_none_or(|x| set.iter().all(|v| **v != *x)),
        Expr::Not(e) => !truth(e, map),
        Expr::And(l) => l.iter().fold(true, |acc, e| acc & truth(e, map)),
        Expr::Or(l) => l.iter().fold(false, |acc, e| acc | truth(e, map)),
    }
}

proptest! {
    #[test]
    fn print_then_parse_gives_the_same_selector_with_the_same_meaning(
        expr in expr(),
        given in prop::collection::btree_map(
            prop::sample::select(&NAMES[..]).prop_map(str::to_owned),
            prop::sample::select(&VALUES[..]).prop_map(str::to_owned),
            0..5,
        ),
    ) {
        let selector = Selector(Arc::new(expr));
        let again: Selector = selector.to_string().parse().unwrap();
        prop_assert_eq!(&again, &selector);
        prop_assert_eq!(again.matches(&given), truth(selector.expr(), &given));
        prop_assert_eq!(
            selector.matches_with(|n| given.get(n).map(String::as_str)),
            truth(selector.expr(), &given)
        );
    }

    #[test]
    fn the_grammar_of_calico_3_includes_that_of_v1(text in "[ab!&|(){}\"', ]{0,6}(in|not in|notin|has\\(|all\\(|==)?[ab!&|(){}\"', ]{0,20}") {
        if let Ok(selector) = Selector::parse_v1(&text) {
            prop_assert_eq!(text.parse::<Selector>(), Ok(selector));
        }
    }

    #[test]
    fn any_text_gives_an_answer_and_a_place_inside_of_it(text in "[a-d!&|()={}\"', \tnothasi\u{e4}\n]{0,40}") {
        match text.parse::<Selector>() {
            Ok(selector) => {
                let canonical = selector.to_string();
                prop_assert_eq!(canonical.parse::<Selector>().unwrap(), selector);
            }
            Err(error) => {
                prop_assert!(text.is_char_boundary(error.offset));
                prop_assert_eq!(error.column, text[..error.offset].chars().count() + 1);
            }
        }
    }
}
