//! Like `each_lock`, on the groups that only the newer Redisson has.

use super::CAST;
use crate::{checks, what::What};

crate::each_check!(group, What::Group);
