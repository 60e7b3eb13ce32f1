//! The arguments of the attribute.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, Ident, LitBool, LitStr, Path, Result, Stmt, Token};

use crate::duration::Duration;

const KEYS: &str = "client, wait, busy, kind, lease, fixed_lease, max_hold, progress_within, owner, protect, crate";

/// The arguments in one use of the attribute.
pub(crate) struct Arguments {
    /// The format string for the name, and the values for the empty braces (`{}`) in it.
    name: (LitStr, Vec<Expr>),
    pub(crate) client: Expr,
    pub(crate) wait: Option<Duration>,
    pub(crate) busy: Option<Expr>,
    pub(crate) kind: Kind,
    lease: Option<Duration>,
    fixed_lease: Option<Duration>,
    max_hold: Option<Duration>,
    progress_within: Option<Duration>,
    owner: Option<Expr>,
    /// Whether a loss stops the body, and the place in the attribute that sets this.
    pub(crate) protect: Option<(bool, Span)>,
    krate: Option<Path>,
}

/// The kind of the lock.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Plain,
    Fair,
    Fenced,
    Read,
    Write,
}

/// The value of an argument, and its key.
type Setting<T> = Option<(T, Ident)>;

/// The settings that were found so far.
#[derive(Default)]
struct Found {
    client: Setting<Expr>,
    wait: Setting<Expr>,
    busy: Setting<Expr>,
    kind: Setting<LitStr>,
    lease: Setting<Expr>,
    fixed_lease: Setting<Expr>,
    max_hold: Setting<Expr>,
    progress_within: Setting<Expr>,
    owner: Setting<Expr>,
    protect: Setting<bool>,
    krate: Setting<Path>,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name = template(input)?;
        let (mut values, mut found) = (Vec::new(), Found::default());
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let is_key = input.peek(Ident::peek_any) && input.peek2(Token![=]);
            let is_key = is_key && !input.peek2(Token![==]) && !input.peek2(Token![=>]);
            // An argument of the function may have this name: `protect.id` is a value.
            let rest = input.fork();
            let is_flag = (rest.call(Ident::parse_any)).is_ok_and(|key| key == "protect")
                && (rest.is_empty() || rest.peek(Token![,]));
            match is_key || is_flag {
                true => found.read(input)?,
                false => values.push(input.parse()?),
            }
        }
        found.checked((name, values))
    }
}

/// Reads the format string for the name.
fn template(input: ParseStream<'_>) -> Result<LitStr> {
    let example = "begin with the name of the lock, as a string such as \"invoice:{id}\"";
    if input.is_empty() {
        return Err(syn::Error::new(Span::call_site(), example));
    }
    let name = input
        .parse::<LitStr>()
        .map_err(|error| syn::Error::new(error.span(), example))?;
    match name.value().is_empty() {
        true => Err(syn::Error::new(
            name.span(),
            "the name of a lock can't be empty",
        )),
        false => Ok(name),
    }
}

impl Found {
    fn read(&mut self, input: ParseStream<'_>) -> Result<()> {
        let key = input.call(Ident::parse_any)?;
        if key == "protect" && !input.peek(Token![=]) {
            return set(&mut self.protect, key, true);
        }
        input.parse::<Token![=]>()?;
        match &*key.to_string() {
            "client" => set(&mut self.client, key, unbraced(input.parse()?)),
            "wait" => set(&mut self.wait, key, input.parse()?),
            "busy" => set(&mut self.busy, key, returned(input.parse()?)),
            "kind" => set(&mut self.kind, key, input.parse()?),
            "lease" => set(&mut self.lease, key, input.parse()?),
            "fixed_lease" => set(&mut self.fixed_lease, key, input.parse()?),
            "max_hold" => set(&mut self.max_hold, key, input.parse()?),
            "progress_within" => set(&mut self.progress_within, key, input.parse()?),
            "owner" => set(&mut self.owner, key, unbraced(input.parse()?)),
            "protect" => set(&mut self.protect, key, input.parse::<LitBool>()?.value),
            "crate" => set(&mut self.krate, key, input.call(Path::parse_mod_style)?),
            other => Err(syn::Error::new(
                key.span(),
                format!("unknown key `{other}`; the keys are {KEYS}"),
            )),
        }
    }

    fn checked(self, name: (LitStr, Vec<Expr>)) -> Result<Arguments> {
        let Some((client, _)) = self.client else {
            return Err(syn::Error::new(
                Span::call_site(),
                "no client; add `client = …`, for example `client = self.locks`",
            ));
        };
        if let (Some((_, key)), None) = (&self.busy, &self.wait) {
            return Err(syn::Error::new(
                key.span(),
                "`busy` needs `wait`: without it, the function waits until the lock is free",
            ));
        }
        if let (Some(_), Some((_, key))) = (&self.lease, &self.fixed_lease) {
            return Err(syn::Error::new(
                key.span(),
                "a hold is either renewed (`lease`) or not (`fixed_lease`); set one of them",
            ));
        }
        if let (Some(_), Some((_, key))) = (&self.fixed_lease, &self.progress_within) {
            return Err(syn::Error::new(
                key.span(),
                "a hold with a `fixed_lease` has no renewals that could depend on progress",
            ));
        }
        Ok(Arguments {
            name,
            client,
            wait: duration(self.wait)?,
            busy: self.busy.map(|(value, _)| value),
            kind: self
                .kind
                .map_or(Ok(Kind::Plain), |(kind, _)| Kind::of(&kind))?,
            lease: duration(self.lease)?,
            fixed_lease: duration(self.fixed_lease)?,
            max_hold: duration(self.max_hold)?,
            progress_within: duration(self.progress_within)?,
            owner: self.owner.map(|(value, _)| value),
            protect: self.protect.map(|(value, key)| (value, key.span())),
            krate: self.krate.map(|(value, _)| value),
        })
    }
}

fn set<T>(setting: &mut Setting<T>, key: Ident, value: T) -> Result<()> {
    if setting.is_some() {
        return Err(syn::Error::new(key.span(), format!("`{key}` is set twice")));
    }
    *setting = Some((value, key));
    Ok(())
}

fn duration(setting: Setting<Expr>) -> Result<Option<Duration>> {
    setting.map(|(value, _)| Duration::of(value)).transpose()
}

/// Returns the value in `busy`, without a `return`: `busy = Ok(())` and `busy = return Ok(())` have
/// the same meaning.
fn returned(value: Expr) -> Expr {
    match unbraced(value) {
        Expr::Return(value) => match value.expr {
            Some(value) => *value,
            None => syn::parse_quote!(()),
        },
        value => value,
    }
}

/// Removes the braces of a block that contains only a value. In the generated code, the compiler
/// would warn about these braces.
pub(crate) fn unbraced(value: Expr) -> Expr {
    match value {
        Expr::Block(mut block)
            if block.attrs.is_empty()
                && block.label.is_none()
                && matches!(block.block.stmts[..], [Stmt::Expr(_, None)]) =>
        {
            match block.block.stmts.pop() {
                Some(Stmt::Expr(value, None)) => unbraced(value),
                _ => Expr::Block(block),
            }
        }
        value => value,
    }
}

impl Kind {
    fn of(kind: &LitStr) -> Result<Self> {
        Ok(match &*kind.value() {
            "plain" => Self::Plain,
            "fair" => Self::Fair,
            "fenced" => Self::Fenced,
            "read" => Self::Read,
            "write" => Self::Write,
            _ => {
                return Err(syn::Error::new(
                    kind.span(),
                    "unknown kind; the kinds are \"plain\", \"fair\", \"fenced\", \"read\" and \"write\"",
                ));
            }
        })
    }
}

impl Arguments {
    pub(crate) fn krate(&self) -> TokenStream {
        match &self.krate {
            Some(path) => quote!(#path),
            None => quote!(::leasehold),
        }
    }

    /// Returns the expression that creates the lock, with its settings. `client_type` is the type
    /// of the client.
    pub(crate) fn lock(&self, client_type: &TokenStream) -> TokenStream {
        let ((template, values), client) = (&self.name, &self.client);
        let (method, side) = match self.kind {
            Kind::Plain => (quote!(lock), quote!()),
            Kind::Fair => (quote!(fair_lock), quote!()),
            Kind::Fenced => (quote!(fenced_lock), quote!()),
            Kind::Read => (quote!(rw_lock), quote!(.read_lock())),
            Kind::Write => (quote!(rw_lock), quote!(.write_lock())),
        };
        let name = quote!(::std::format!(#template #(, #values)*));
        // The code calls a function, not a method. So if the client has a wrong type, the compiler
        // names the type, at the place of the expression.
        let reference = quote::quote_spanned!(client.span()=> &#client);
        let mut lock = quote!(#client_type::#method(#reference, #name)#side);
        let settings = [
            (quote!(lease), &self.lease),
            (quote!(fixed_lease), &self.fixed_lease),
            (quote!(max_hold), &self.max_hold),
            (quote!(progress_within), &self.progress_within),
        ];
        for (setter, value) in settings {
            if let Some(value) = value.as_ref().map(Duration::tokens) {
                lock.extend(quote!(.#setter(#value)));
            }
        }
        if let Some(owner) = &self.owner {
            lock.extend(quote!(.owned_by(&#owner)));
        }
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Arguments {
        syn::parse_str(text).expect(text)
    }

    #[test]
    fn value_may_begin_like_the_flag() {
        let value = parsed(r#""order:{}", protect.id, client = x"#);
        assert!(value.protect.is_none());
        assert_eq!(value.name.1.len(), 1);
        for flag in [
            r#""x", protect, client = x"#,
            r#""x", client = x, protect"#,
            r#""x", client = x, protect = true"#,
        ] {
            let flag = parsed(flag);
            assert!(matches!(flag.protect, Some((true, _))));
            assert!(flag.name.1.is_empty());
        }
    }

    /// With the braces, the compiler would warn about them, or expect another type inside them.
    #[test]
    fn braces_around_a_value_are_dropped() {
        let braced = parsed(r#""x", client = { { x } }, wait = { y }, busy = { Ok(()) }"#);
        assert!(matches!(braced.client, Expr::Path(_)));
        assert!(matches!(braced.busy, Some(Expr::Call(_))));
        assert!(matches!(
            braced.wait,
            Some(Duration::Expression(Expr::Path(_)))
        ));
        let block = parsed(r#""x", client = { x(); y }"#);
        assert!(matches!(block.client, Expr::Block(_)));
    }
}
