//! The function that runs under the lock.

use proc_macro2::{Group, TokenStream};
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Attribute, Block, Expr, ExprAsync, GenericArgument, PathArguments, Result, ReturnType,
    Signature, Stmt, Token, Type, TypeParamBound, Visibility, token,
};

/// A function with its body.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    // The body is not parsed here, because the compiler reports errors in it better.
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let is_function = [input.peek(Token![fn]), input.peek(Token![async])];
        let is_other = [
            input.peek(Token![const]),
            input.peek(Token![unsafe]),
            input.peek(Token![extern]),
        ];
        if !is_function.into_iter().chain(is_other).any(|found| found) {
            return Err(input.error("`#[locked]` is for functions"));
        }
        let signature: Signature = input.parse()?;
        if !input.peek(token::Brace) {
            return Err(syn::Error::new(
                signature.ident.span(),
                "`#[locked]` needs a body; write it where the method is implemented",
            ));
        }
        if let Some(token) = &signature.constness {
            return Err(syn::Error::new(
                token.span,
                "a `const fn` can't wait for a lock",
            ));
        }
        Ok(Self {
            attributes,
            visibility,
            signature,
            body: input.parse()?,
        })
    }
}

/// The way in which the body runs.
pub(crate) enum Form {
    /// An `async fn`.
    Async { output: Type, body: TokenStream },
    /// A function that returns `Box::pin(async move { … })`. `#[async_trait]` turns async methods
    /// into such functions. `before` contains the statements before that expression.
    Boxed {
        output: Type,
        before: Vec<Stmt>,
        function: Expr,
        body: TokenStream,
    },
    /// A function that blocks its thread.
    Blocking { output: Type, body: TokenStream },
}

impl Function {
    pub(crate) fn form(&self) -> Result<Form> {
        let ReturnType::Type(_, output) = &self.signature.output else {
            return Err(syn::Error::new(
                self.signature.ident.span(),
                "a function under a lock returns a `Result`, because the lock can fail or be lost",
            ));
        };
        let (output, body) = ((**output).clone(), &self.body);
        if self.signature.asyncness.is_some() {
            let body = quote!(#body);
            return Ok(Form::Async { output, body });
        }
        if let Some(output) = boxed_output(&output) {
            return self.boxed(output.clone());
        }
        if let Type::ImplTrait(_) = output {
            return Err(syn::Error::new(
                output.span(),
                "write it as an `async fn` instead",
            ));
        }
        let body = quote!(#body);
        Ok(Form::Blocking { output, body })
    }

    fn boxed(&self, output: Type) -> Result<Form> {
        let body = &self.body;
        let mut block: Block = syn::parse2(quote!(#body))?;
        if let Some(Stmt::Expr(Expr::Call(call), None)) = block.stmts.pop()
            && let Some(Expr::Async(ExprAsync { block: inner, .. })) = call.args.first()
        {
            return Ok(Form::Boxed {
                output,
                before: block.stmts,
                function: *call.func,
                body: quote!(#inner),
            });
        }
        Err(syn::Error::new(
            self.signature.output.span(),
            "a function that returns a boxed future must end with `Box::pin(async move { … })`",
        ))
    }
}

/// Returns the future's output, if the type is `Pin<Box<dyn Future<Output = …>>>`.
fn boxed_output(output: &Type) -> Option<&Type> {
    let boxed = argument(output, "Pin")?;
    let Type::TraitObject(object) = argument(boxed, "Box")? else {
        return None;
    };
    object.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let last = bound
            .path
            .segments
            .last()
            .filter(|last| last.ident == "Future")?;
        let PathArguments::AngleBracketed(arguments) = &last.arguments else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(output) => Some(&output.ty),
            _ => None,
        })
    })
}

/// Returns the first generic argument of the type, if the type has this name.
fn argument<'a>(of: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = of else { return None };
    let last = path
        .path
        .segments
        .last()
        .filter(|last| last.ident == name)?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    })
}
