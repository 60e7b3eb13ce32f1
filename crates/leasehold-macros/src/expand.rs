//! Expands a function: puts the lock around its body.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Result, Type};

use crate::arguments::Arguments;
use crate::function::{Form, Function};

pub(crate) fn locked(arguments: &Arguments, function: &Function) -> Result<TokenStream> {
    let body = match function.form()? {
        Form::Async { output, body } => in_future(arguments, &output, &body),
        Form::Boxed {
            output,
            before,
            function,
            body,
        } => {
            let body = in_future(arguments, &output, &body);
            quote!(#(#before)* #function(async move { #body }))
        }
        Form::Blocking { output, body } => {
            if let Some((true, place)) = arguments.protect {
                return Err(syn::Error::new(
                    place,
                    "`protect` needs an `async fn`: a thread can't be stopped when its lock is lost",
                ));
            }
            in_thread(arguments, &output, &body)
        }
    };
    let Function {
        attributes,
        visibility,
        signature,
        ..
    } = function;
    Ok(quote!(#(#attributes)* #visibility #signature { #body }))
}

/// The names of variables that the body can't use.
struct Hidden {
    lock: Ident,
    guard: Ident,
    output: Ident,
}

impl Hidden {
    fn new() -> Self {
        let hidden = |name| Ident::new(name, Span::mixed_site());
        Self {
            lock: hidden("lock"),
            guard: hidden("guard"),
            output: hidden("output"),
        }
    }
}

/// Returns the body of an async function.
fn in_future(arguments: &Arguments, output_type: &Type, body: &TokenStream) -> TokenStream {
    let Hidden {
        lock,
        guard,
        output,
    } = Hidden::new();
    let krate = arguments.krate();
    let made = arguments.lock(&quote!(#krate::Client));
    let acquired = acquired(arguments, output_type, &quote!(.await));
    let typed = typed(output_type, body);
    let work = quote!(async move { #typed });
    // A loss is the error in the outer `Result`. An error from the body is in the inner `Result`.
    let run = match arguments.protect {
        Some((false, _)) => quote!(::core::result::Result::<_, #krate::Error>::Ok(#work.await)),
        _ => quote! {
            ::core::convert::AsRef::<#krate::LockGuard>::as_ref(&#guard).protect(#work).await
        },
    };
    let (lost, unreleased) = (
        converted(output_type, "loss"),
        converted(output_type, "error"),
    );
    let release = quote! {
        ::core::convert::Into::<#krate::LockGuard>::into(#guard).release().await
    };
    let visible = visible(&guard);
    quote! {
        let #lock: #krate::Lock<_> = #made;
        #acquired
        #visible
        let #output = #run;
        match #output {
            ::core::result::Result::Ok(::core::result::Result::Ok(#output)) => match #release {
                ::core::result::Result::Ok(()) => ::core::result::Result::Ok(#output),
                #unreleased
            },
            ::core::result::Result::Ok(::core::result::Result::Err(#output)) => {
                ::core::mem::drop(#release);
                ::core::result::Result::Err(#output)
            }
            #lost
        }
    }
}

/// Returns the body of a blocking function.
fn in_thread(arguments: &Arguments, output_type: &Type, body: &TokenStream) -> TokenStream {
    let Hidden {
        lock,
        guard,
        output,
    } = Hidden::new();
    let krate = arguments.krate();
    let made = arguments.lock(&quote!(#krate::blocking::Client));
    let acquired = acquired(arguments, output_type, &quote!());
    let typed = typed(output_type, body);
    let unreleased = converted(output_type, "error");
    let visible = visible(&guard);
    // Function names are not hygienic in macros: a short name could hide a function of the caller.
    let once = Ident::new("leasehold_macros_call_once", Span::mixed_site());
    quote! {
        // A closure that is called in place could not return a reference that it has borrowed
        // mutably.
        fn #once<T>(work: impl ::core::ops::FnOnce() -> T) -> T {
            work()
        }
        let #lock: #krate::blocking::Lock<_, _> = #made;
        #acquired
        #visible
        let #output = #once(move || { #typed });
        match #output {
            ::core::result::Result::Ok(#output) => match #guard.release() {
                ::core::result::Result::Ok(()) => ::core::result::Result::Ok(#output),
                #unreleased
            },
            ::core::result::Result::Err(#output) => {
                ::core::mem::drop(#guard.release());
                ::core::result::Result::Err(#output)
            }
        }
    }
}

/// Returns the statement that acquires the lock and creates the guard, or returns from the
/// function.
fn acquired(arguments: &Arguments, output_type: &Type, awaited: &TokenStream) -> TokenStream {
    let Hidden { lock, guard, .. } = Hidden::new();
    let failed = converted(output_type, "error");
    let Some(wait) = &arguments.wait else {
        return quote! {
            let #guard = match #lock.acquire() #awaited {
                ::core::result::Result::Ok(guard) => guard,
                #failed
            };
        };
    };
    let once = quote!(#lock.try_acquire() #awaited);
    let limit = Ident::new("limit", Span::mixed_site());
    let result = match wait.tokens() {
        _ if wait.is_zero() => once,
        value if wait.is_literal() => quote!(#lock.try_acquire_for(#value) #awaited),
        value => quote!({
            let #limit: ::core::time::Duration = #value;
            match #limit.is_zero() {
                true => #once,
                false => #lock.try_acquire_for(#limit) #awaited,
            }
        }),
    };
    let krate = arguments.krate();
    let busy = match &arguments.busy {
        Some(busy) => quote!(#busy),
        None => {
            let place = Span::mixed_site().located_at(output_type.span());
            let busy = quote_spanned!(place=> #krate::Busy::new(#lock.name()));
            quote_spanned!(place=> ::core::result::Result::Err(::core::convert::From::from(#busy)))
        }
    };
    quote! {
        let #guard = match #result {
            ::core::result::Result::Ok(::core::option::Option::Some(guard)) => guard,
            ::core::result::Result::Ok(::core::option::Option::None) => return #busy,
            #failed
        };
    }
}

/// Returns the arm of a `match` that converts an error of the library, and returns it from the
/// function.
fn converted(output_type: &Type, name: &str) -> TokenStream {
    // With this span, the compiler reports a missing `From`, or a type that is not a `Result`, at
    // the function's return type.
    let place = Span::mixed_site().located_at(output_type.span());
    let error = Ident::new(name, place);
    let returned = quote_spanned! {place=>
        return ::core::result::Result::Err(::core::convert::From::from(#error))
    };
    quote!(::core::result::Result::Err(#error) => #returned,)
}

/// Returns the statement that makes the guard visible to the body.
fn visible(guard: &Ident) -> TokenStream {
    let name = Ident::new("lock_guard", Span::call_site());
    quote! {
        #[allow(unused_variables)]
        let #name = &#guard;
    }
}

/// Returns the body with the type of its output. Without this type, the compiler could not infer
/// the error type of a `?` in the body.
fn typed(output_type: &Type, body: &TokenStream) -> TokenStream {
    let output_type = without_impl(quote!(#output_type));
    let output = Ident::new("output", Span::mixed_site());
    let body = without_braces(body);
    quote! {
        if let ::core::option::Option::Some(#output) = ::core::option::Option::None::<#output_type> {
            return #output;
        }
        #body
    }
}

/// Removes the braces of a body that becomes the end of another block. The compiler would warn that
/// they are not needed.
fn without_braces(body: &TokenStream) -> TokenStream {
    let mut tokens = body.clone().into_iter();
    let (Some(TokenTree::Group(group)), None) = (tokens.next(), tokens.next()) else {
        return body.clone();
    };
    let first = group.stream().into_iter().next();
    // An attribute of the body itself, `#![..]`, must be the first thing in its braces.
    let may_have_attribute = matches!(first, Some(TokenTree::Punct(mark)) if mark.as_char() == '#');
    match group.delimiter() {
        Delimiter::Brace if !may_have_attribute => group.stream(),
        _ => body.clone(),
    }
}

/// Replaces each `impl Trait` with `_`, because `impl Trait` can't be written as the type of an
/// expression.
fn without_impl(tokens: TokenStream) -> TokenStream {
    let (mut replaced, mut tokens) = (TokenStream::new(), tokens.into_iter().peekable());
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Ident(word) if word == "impl" => {
                replaced.extend(quote!(_));
                let (mut depth, mut before) = (0_i32, ' ');
                // The bounds end at a comma, or at the end of the list that contains them.
                while let Some(next) = tokens.peek() {
                    let mark = match next {
                        TokenTree::Punct(mark) => mark.as_char(),
                        _ => ' ',
                    };
                    match (before, mark) {
                        // This is the arrow in a bound such as `Fn() -> T`.
                        ('-', '>') => {}
                        (_, '>' | ',') if depth == 0 => break,
                        (_, '<') => depth += 1,
                        (_, '>') => depth -= 1,
                        _ => {}
                    }
                    before = mark;
                    tokens.next();
                }
            }
            TokenTree::Group(group) => {
                let inner = without_impl(group.stream());
                replaced.extend([TokenTree::Group(Group::new(group.delimiter(), inner))]);
            }
            token => replaced.extend([token]),
        }
    }
    replaced
}
