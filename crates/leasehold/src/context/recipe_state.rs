//! The state that recipes keep for a client. The client does not know the recipes, so it finds the
//! state of each by its type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use crate::sync::Mutex;

/// The states of a client's recipes: one value of each type.
#[derive(Default)]
pub(crate) struct RecipeState(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl RecipeState {
    /// Returns the value of type `T`. Creates it if it does not exist.
    pub(crate) fn of<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut states = self.0.lock();
        let state = states
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(T::default()));
        let state = Arc::clone(state);
        drop(states);
        state.downcast().expect("it was found by its type")
    }
}
