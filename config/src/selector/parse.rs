//! Recursive descent parser of selectors, with one token of lookahead.

use super::lex::{Lexer, OPERATOR_AFTER_LABEL, Token};
use super::{Expr, Grammar, MAX_DEPTH, SelectorError, SelectorErrorKind};

pub(super) fn parse(grammar: Grammar, text: &str) -> Result<Expr, SelectorError> {
    let mut lexer = Lexer::new(grammar, text)?;
    if lexer.token == Token::End {
        return Ok(Expr::All);
    }
    let expr = or(&mut lexer, 0)?;
    match lexer.token {
        Token::End => Ok(expr),
        _ => Err(lexer.expected("`&&`, `||` or the end of the selector")),
    }
}

fn or(lexer: &mut Lexer<'_>, depth: usize) -> Result<Expr, SelectorError> {
    let first = and(lexer, depth)?;
    if lexer.token != Token::Or {
        return Ok(first);
    }
    let mut list = vec![first];
    while lexer.token == Token::Or {
        lexer.advance()?;
        list.push(and(lexer, depth)?);
    }
    Ok(Expr::Or(list.into()))
}

fn and(lexer: &mut Lexer<'_>, depth: usize) -> Result<Expr, SelectorError> {
    let first = operation(lexer, depth)?;
    if lexer.token != Token::And {
        return Ok(first);
    }
    let mut list = vec![first];
    while lexer.token == Token::And {
        lexer.advance()?;
        list.push(operation(lexer, depth)?);
    }
    Ok(Expr::And(list.into()))
}

fn operation(lexer: &mut Lexer<'_>, depth: usize) -> Result<Expr, SelectorError> {
    let mut negated = false;
    while lexer.token == Token::Not {
        negated = !negated;
        lexer.advance()?;
    }
    let expr = match lexer.token {
        Token::All => {
            lexer.advance()?;
            Expr::All
        }
        Token::Global => {
            lexer.advance()?;
            Expr::Global
        }
        Token::Has(label) => {
            lexer.advance()?;
            Expr::Has(label.into())
        }
        Token::Label(label) => {
            lexer.advance()?;
            comparison(lexer, label)?
        }
        Token::Open => {
            if depth == MAX_DEPTH {
                return Err(lexer.error(lexer.start, SelectorErrorKind::TooDeep));
            }
            lexer.advance()?;
            let inner = or(lexer, depth + 1)?;
            if lexer.token != Token::Close {
                return Err(lexer.expected("`&&`, `||` or `)`"));
            }
            lexer.advance()?;
            inner
        }
        _ => return Err(lexer.expected("a label, has(...), all(), `!` or `(`")),
    };
    Ok(match (negated, expr) {
        (false, expr) => expr,
        // `!(!x)` is simplified to `x`, like `!!x`.
        (true, Expr::Not(inner)) => *inner,
        (true, expr) => Expr::Not(Box::new(expr)),
    })
}

fn comparison(lexer: &mut Lexer<'_>, label: &str) -> Result<Expr, SelectorError> {
    let with_value: fn(Box<str>, Box<str>) -> Expr = match lexer.token {
        Token::Eq => Expr::Eq,
        Token::Ne => Expr::Ne,
        Token::Contains => Expr::Contains,
        Token::StartsWith => Expr::StartsWith,
        Token::EndsWith => Expr::EndsWith,
        Token::In => {
            lexer.advance()?;
            return Ok(Expr::In(label.into(), set(lexer)?));
        }
        Token::NotIn => {
            lexer.advance()?;
            return Ok(Expr::NotIn(label.into(), set(lexer)?));
        }
        _ => {
            return Err(lexer.expected(match lexer.grammar {
                Grammar::V1 => "`==`, `!=`, `in` or `not in` after the label",
                Grammar::V3 => OPERATOR_AFTER_LABEL,
            }));
        }
    };
    lexer.advance()?;
    let Token::String(value) = lexer.token else {
        return Err(lexer.expected("a string in quotes"));
    };
    lexer.advance()?;
    Ok(with_value(label.into(), value.into()))
}

fn set(lexer: &mut Lexer<'_>) -> Result<Box<[Box<str>]>, SelectorError> {
    if lexer.token != Token::OpenSet {
        return Err(lexer.expected("`{`"));
    }
    lexer.advance()?;
    let mut values: Vec<Box<str>> = Vec::new();
    while let Token::String(value) = lexer.token {
        values.push(value.into());
        lexer.advance()?;
        match lexer.token {
            Token::Comma => lexer.advance()?,
            Token::CloseSet => break,
            _ => return Err(lexer.expected("`,` or `}`")),
        }
    }
    if lexer.token != Token::CloseSet {
        return Err(lexer.expected("a string in quotes or `}`"));
    }
    lexer.advance()?;
    values.sort_unstable();
    values.dedup();
    Ok(values.into())
}
