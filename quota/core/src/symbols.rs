//! The functions of a real library that we wrap or call, and where they are.
//!
//! A library of ours has one table, a macro that hands its rows to any other macro.
//! [`real_functions!`](crate::real_functions) makes the calls of the real library from it,
//! [`exports!`](crate::exports) our own functions. These are two modules, so what an export leads to can call
//! the real library without naming the exports.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::elf;
use crate::message::Refusal;

/// A C function of whatever type.
pub type Function = unsafe extern "C" fn();

/// One row of a library's table.
pub struct Symbol {
    name: &'static str,
    /// The real function's address; [`UNKNOWN`] before the first look, [`ABSENT`] if there is none.
    address: AtomicUsize,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl Symbol {
    /// A row whose real function has not been looked for.
    pub const fn new(name: &'static str) -> Self {
        Self { name, address: AtomicUsize::new(UNKNOWN) }
    }
}

/// The real library behind a table.
pub struct Library {
    /// The name that the real library and ours bear.
    pub soname: &'static str,
    /// The table: first the functions that are wrapped, then those that we only call.
    pub symbols: &'static [Symbol],
}

impl Library {
    /// The real function of row number `row`, looked for once per process. `None` if this version of the real
    /// library has none.
    #[inline]
    pub fn real(&self, row: usize) -> Option<usize> {
        let symbol = self.symbols.get(row)?;
        match symbol.address.load(Ordering::Relaxed) {
            UNKNOWN => self.look(symbol),
            ABSENT => None,
            address => Some(address),
        }
    }

    /// Fills the table. It takes no lock of ours: the loader's locks are taken inside, and a thread that
    /// holds those may be waiting for us in a constructor. Two threads at once write the same.
    #[cold]
    fn look(&self, wanted: &Symbol) -> Option<usize> {
        let Some(loaded) = elf::real(self.soname, core::ptr::from_ref(wanted) as usize) else {
            Refusal::Library.say();
            return None;
        };
        for symbol in self.symbols {
            symbol.address.store(loaded.function(symbol.name).unwrap_or(ABSENT), Ordering::Relaxed);
        }
        Some(wanted.address.load(Ordering::Relaxed)).filter(|&address| address != ABSENT)
    }

    /// Whether the real library has the function `name`, which is in the table.
    pub fn has(&self, name: &str) -> bool {
        self.symbols.iter().position(|symbol| symbol.name == name).is_some_and(|row| self.real(row).is_some())
    }

    /// Our function for the real function at `address`, if we wrap it. `exports` are our functions, in the
    /// table's order.
    pub fn export_of(&self, address: usize, exports: &[Function]) -> Option<Function> {
        // Fills the table if no call has yet.
        self.real(0);
        if address <= ABSENT {
            return None;
        }
        let mut rows = self.symbols.iter().zip(exports);
        rows.find(|(symbol, _)| symbol.address.load(Ordering::Relaxed) == address).map(|(_, &export)| export)
    }
}

/// Declares the real library of a table: `LIBRARY`, and for each row an unsafe function of the same name that
/// calls the real one, or gives `absent` if this version of the real library has none.
#[macro_export]
macro_rules! real_functions {
    (
        library: $soname:expr;
        result: $result:ty, absent: $absent:expr;
        wrap { $($name:ident($($argument:ident: $type:ty),* $(,)?) = $($segment:ident)::+ $(($($given:tt)*))?;)* }
        call { $($called:ident($($called_argument:ident: $called_type:ty),* $(,)?);)* }
    ) => {
        /// The real library, and all that we wrap or call of it.
        pub(crate) static LIBRARY: $crate::symbols::Library =
            $crate::symbols::Library { soname: $soname, symbols: &SYMBOLS };

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(usize)]
        enum Row { $($name,)* $($called,)* Count }

        static SYMBOLS: [$crate::symbols::Symbol; Row::Count as usize] = [
            $($crate::symbols::Symbol::new(stringify!($name)),)*
            $($crate::symbols::Symbol::new(stringify!($called)),)*
        ];

        $crate::real_functions!(@real $result, $absent; $($name($($argument: $type),*);)*);
        $crate::real_functions!(@real $result, $absent; $($called($($called_argument: $called_type),*);)*);
    };
    (@real $result:ty, $absent:expr; $($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// The real function of this name.
            ///
            /// # Safety
            /// As the real one's.
            #[allow(non_snake_case, dead_code, clippy::too_many_arguments)]
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                match LIBRARY.real(Row::$name as usize) {
                    // SAFETY: the real function of this name, which has this type.
                    Some(address) => unsafe {
                        core::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(address)(
                            $($argument),*
                        )
                    },
                    None => $absent,
                }
            }
        )*
    };
}

/// Defines the functions that a library exports, one for each row under `wrap`, and `EXPORTS`, the list of
/// them.
///
/// A row is a function of the real library, `=`, and our function that does it:
///
/// - `= path(one, two)`: our function gets these values, and the call of the real function as a closure;
/// - `= path`: our function gets the arguments as they are.
#[macro_export]
macro_rules! exports {
    (
        library: $soname:expr;
        result: $result:ty, absent: $absent:expr;
        wrap { $($name:ident($($argument:ident: $type:ty),* $(,)?) = $($segment:ident)::+ $(($($given:tt)*))?;)* }
        call { $($called:tt)* }
    ) => {
        $(
            /// The wrapped function of this name.
            ///
            /// # Safety
            /// As the real one's.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise is handed on.
                unsafe {
                    $crate::exports!(@call $name [$($argument),*] [$($segment)::+] $(($($given)*))?)
                }
            }
        )*

        /// The exported functions, in the table's order.
        pub(crate) static EXPORTS: &[$crate::symbols::Function] = &[$(
            // SAFETY: between function pointers; it is only handed out, and called as what it is.
            unsafe {
                core::mem::transmute::<
                    unsafe extern "C" fn($($type),*) -> $result,
                    $crate::symbols::Function,
                >($name)
            },
        )*];
    };
    (@call $name:ident [$($argument:ident),*] [$($segment:ident)::+]) => {
        $($segment)::+($($argument),*)
    };
    (@call $name:ident [$($argument:ident),*] [$($segment:ident)::+] ($($given:expr),* $(,)?)) => {
        $($segment)::+($($given,)* || real::$name($($argument),*))
    };
}
