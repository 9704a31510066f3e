//! Public API of the crate as text, compared with `tests/public-api.txt`. A change of the API is a change of
//! that file and cannot go unnoticed. `UPDATE_API=1 cargo test -p tortie-bgp --test api` rewrites it.
//!
//! The API is read from the sources, because rustdoc's JSON requires a nightly compiler. This is exact
//! because of the lint `unreachable_pub`, which CI denies: no item is `pub` unless it is reachable from
//! outside.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::disallowed_methods, reason = "the test reads sources and writes public-api.txt")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, Meta, Type, Visibility};

fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        Meta::List(list) if a.path().is_ident("cfg") => {
            matches!(list.tokens.to_string().as_str(), "test" | "doctest")
        }
        _ => false,
    })
}

/// Keeps the attributes that affect how a type can be used.
fn keep(attributes: &mut Vec<Attribute>) {
    attributes.retain(|a| a.path().is_ident("derive") || a.path().is_ident("non_exhaustive"));
}

/// Formats tokens with the usual spaces.
fn text(item: impl ToTokens) -> String {
    let mut text = item.to_token_stream().to_string();
    for (from, to) in [
        (" :: ", "::"),
        (" , ", ", "),
        (" ,", ","),
        ("( ", "("),
        (" )", ")"),
        (" (", "("),
        (" : ", ": "),
        (" < ", "<"),
        (" > ", "> "),
        (" >", ">"),
        ("& ", "&"),
        (" ;", ";"),
        ("# [", "#["),
        ("[ ", "["),
        (" ]", "]"),
    ] {
        text = text.replace(from, to);
    }
    text
}

fn is_pub(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn public_fields(fields: &mut Fields) {
    let without_docs = |attributes: &mut Vec<Attribute>| attributes.clear();
    match fields {
        Fields::Named(named) => {
            let hidden = named.named.iter().any(|f| !is_pub(&f.vis));
            named.named = std::mem::take(&mut named.named).into_iter().filter(|f| is_pub(&f.vis)).collect();
            named.named.iter_mut().for_each(|f| without_docs(&mut f.attrs));
            if hidden {
                named.named.push(syn::parse_quote!(private: __));
            }
        }
        Fields::Unnamed(unnamed) => {
            for field in &mut unnamed.unnamed {
                without_docs(&mut field.attrs);
                if !is_pub(&field.vis) {
                    field.ty = syn::parse_quote!(__);
                }
            }
        }
        Fields::Unit => {}
    }
}

/// Returns the name of the type of an `impl`.
fn name_of(ty: &Type) -> String {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default(),
        Type::Reference(reference) => name_of(&reference.elem),
        _ => String::new(),
    }
}

/// Appends the lines of one item; nothing if it is not public.
fn lines(item: Item, public: &BTreeSet<String>, out: &mut Vec<String>) {
    match item {
        Item::Mod(module) => {
            if is_pub(&module.vis) && !is_test(&module.attrs) {
                out.push(format!("pub mod {}", module.ident));
            }
            if let Some((_, items)) = module.content
                && !is_test(&module.attrs)
            {
                items.into_iter().for_each(|i| lines(i, public, out));
            }
        }
        Item::Use(mut item) if is_pub(&item.vis) && !is_test(&item.attrs) => {
            item.attrs.clear();
            out.push(text(item));
        }
        Item::Struct(mut item) if is_pub(&item.vis) && !is_test(&item.attrs) => {
            keep(&mut item.attrs);
            public_fields(&mut item.fields);
            out.push(text(item));
        }
        Item::Enum(mut item) if is_pub(&item.vis) => {
            keep(&mut item.attrs);
            for variant in &mut item.variants {
                variant.attrs.clear();
                variant.fields.iter_mut().for_each(|f| f.attrs.clear());
            }
            out.push(text(item));
        }
        Item::Fn(item) if is_pub(&item.vis) && !is_test(&item.attrs) => {
            out.push(format!("pub {};", text(item.sig)));
        }
        Item::Const(item) if is_pub(&item.vis) => {
            out.push(format!("pub const {}: {} = {};", item.ident, text(item.ty), text(item.expr)));
        }
        Item::Type(mut item) if is_pub(&item.vis) => {
            item.attrs.clear();
            out.push(text(item));
        }
        Item::Trait(mut item) if is_pub(&item.vis) => {
            item.attrs.clear();
            for function in &mut item.items {
                match function {
                    syn::TraitItem::Fn(f) => {
                        f.attrs.clear();
                        if f.default.is_some() {
                            f.default = Some(syn::parse_quote!({}));
                        }
                    }
                    syn::TraitItem::Const(c) => c.attrs.clear(),
                    syn::TraitItem::Type(t) => t.attrs.clear(),
                    _ => {}
                }
            }
            out.push(text(item));
        }
        Item::Impl(item) if public.contains(&name_of(&item.self_ty)) && !is_test(&item.attrs) => {
            let head = text(&item.self_ty);
            if let Some((_, of, _)) = &item.trait_ {
                out.push(format!("impl{} {} for {head}", text(&item.generics), text(of)));
                return;
            }
            for inner in item.items {
                match inner {
                    ImplItem::Fn(f) if is_pub(&f.vis) && !is_test(&f.attrs) => {
                        out.push(format!("{head}: pub {};", text(f.sig)));
                    }
                    ImplItem::Const(c) if is_pub(&c.vis) => {
                        out.push(format!("{head}: pub const {}: {};", c.ident, text(c.ty)));
                    }
                    _ => {}
                }
            }
        }
        // Macros such as the table of error codes: each entry is a constant.
        Item::Macro(item) if item.ident.is_none() => {
            out.push(format!("{}! {}", text(item.mac.path), item.mac.tokens));
        }
        _ => {}
    }
}

fn public_types(items: &[Item], all: &mut BTreeSet<String>) {
    for item in items {
        match item {
            Item::Struct(i) if is_pub(&i.vis) => drop(all.insert(i.ident.to_string())),
            Item::Enum(i) if is_pub(&i.vis) => drop(all.insert(i.ident.to_string())),
            Item::Trait(i) if is_pub(&i.vis) => drop(all.insert(i.ident.to_string())),
            Item::Mod(i) => {
                if let Some((_, items)) = &i.content {
                    public_types(items, all);
                }
            }
            _ => {}
        }
    }
}

fn interface() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    // Files of test modules.
    files.retain(|f| !f.ends_with("tests.rs") && !f.components().any(|c| c.as_os_str() == "tests"));
    let parsed: Vec<(PathBuf, syn::File)> = files
        .into_iter()
        .map(|f| {
            let file = syn::parse_file(&std::fs::read_to_string(&f).unwrap()).unwrap();
            (f, file)
        })
        .collect();
    let mut public = BTreeSet::new();
    parsed.iter().for_each(|(_, file)| public_types(&file.items, &mut public));
    let mut out = String::new();
    for (path, file) in parsed {
        let mut all = Vec::new();
        file.items.into_iter().for_each(|i| lines(i, &public, &mut all));
        if !all.is_empty() {
            out.push_str(&format!("\n# {}\n", path.strip_prefix(root).unwrap().display()));
            all.iter().for_each(|l| out.push_str(&format!("{l}\n")));
        }
    }
    out.trim_start().to_owned()
}

#[test]
fn the_public_interface_is_what_the_snapshot_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/public-api.txt");
    let now = interface();
    assert!(now.lines().count() > 300, "the interface is not read:\n{now}");
    if std::env::var_os("UPDATE_API").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (kept.lines().collect(), now.lines().collect());
    let gone: Vec<String> = old.difference(&new).map(|l| format!("- {l}")).collect();
    let come: Vec<String> = new.difference(&old).map(|l| format!("+ {l}")).collect();
    assert!(
        kept == now,
        "the public interface of tortie-bgp changed:\n{}\n{}\nIf that is meant, say so in bgp/CHANGELOG.md and run\n  \
         UPDATE_API=1 cargo test -p tortie-bgp --test api",
        gone.join("\n"),
        come.join("\n")
    );
}
