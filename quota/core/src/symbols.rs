//! Which functions a library wraps, and where the real ones are.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::elf;
use crate::message::Refusal;

/// What a wrapped function does for the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Takes memory, and counts it.
    Alloc,
    /// Gives memory back.
    Free,
    /// Neither takes nor frees, but decides how long memory lives.
    Hold,
    /// Tells how much there is, or what there is.
    Report,
    /// Lets the GPU work. Code may be loaded for it, or a graph given its memory.
    Launch,
    /// Waits for launches, asks whether they have ended, or comes after them in a stream.
    Follow,
    /// Begins a capture: from then on, streams have to be asked whether they are captured.
    Capture,
    /// Gives out functions.
    Resolve,
    /// Not wrapped: called by us.
    Called,
}

/// A C function of whatever type.
pub type Function = unsafe extern "C" fn();

/// One line of a library's table.
pub struct Symbol {
    /// The exported name.
    pub name: &'static str,
    /// What it does for the limit.
    pub kind: Kind,
    /// Our function of that name.
    pub twin: Option<Function>,
    /// The real one's address; [`UNKNOWN`] before the first look, [`ABSENT`] if there is none.
    real: AtomicUsize,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl Symbol {
    /// A line whose real function has not been looked for.
    pub const fn new(name: &'static str, kind: Kind, twin: Option<Function>) -> Self {
        Self { name, kind, twin, real: AtomicUsize::new(UNKNOWN) }
    }
}

/// The real library behind a table.
pub struct Library {
    /// The name that it and we bear.
    pub soname: &'static str,
    /// The table.
    pub symbols: &'static [Symbol],
}

impl Library {
    /// The real function behind line number `line`, looked for once per process. `None` if this version of
    /// the real library has none.
    #[inline]
    pub fn real(&self, line: usize) -> Option<usize> {
        let symbol = self.symbols.get(line)?;
        match symbol.real.load(Ordering::Relaxed) {
            UNKNOWN => self.look(symbol),
            ABSENT => None,
            address => Some(address),
        }
    }

    /// Fills the table. Takes no lock of ours: the loader's are taken inside, and a thread that holds those
    /// may be waiting for us in a constructor. Two threads at once write the same.
    #[cold]
    fn look(&self, wanted: &Symbol) -> Option<usize> {
        let Some(loaded) = elf::real(self.soname, core::ptr::from_ref(wanted) as usize) else {
            Refusal::Library.say();
            return None;
        };
        for symbol in self.symbols {
            symbol.real.store(loaded.function(symbol.name).unwrap_or(ABSENT), Ordering::Relaxed);
        }
        Some(wanted.real.load(Ordering::Relaxed)).filter(|&address| address != ABSENT)
    }

    /// Whether the real library has the function `name`, which is in the table.
    pub fn has(&self, name: &str) -> bool {
        self.symbols
            .iter()
            .position(|symbol| symbol.name == name)
            .is_some_and(|line| self.real(line).is_some())
    }

    /// Our function for a real one's address, if we wrap it. By address and not by name: the real library
    /// knows best which of its variants a name, a version and flags mean.
    pub fn twin_of(&self, address: usize) -> Option<Function> {
        // Fills the table, if nobody has.
        self.real(0);
        let same = |symbol: &&Symbol| symbol.real.load(Ordering::Relaxed) == address;
        if address <= ABSENT { None } else { self.symbols.iter().filter(same).find_map(|symbol| symbol.twin) }
    }
}

/// Declares what a library wraps, and what else it calls of the real one.
///
/// For each line under `wrap`: the exported function, which hands its arguments on to the function after the
/// `=`; a line of `LIBRARY.symbols`; and `real::NAME`, which calls the real function, or gives `$absent` if
/// this version of the real library has none. A line under `around` likewise, but the function after the `=` gets the call of the real one
/// as a closure. For each line under `call`: the last two only.
#[macro_export]
macro_rules! symbols {
    (
        library: $soname:expr;
        result: $result:ty, absent: $absent:expr;
        wrap { $($kind:ident $name:ident($($argument:ident: $type:ty),* $(,)?) = $body:path;)* }
        $(around {
            $($around_kind:ident $around:ident($($around_argument:ident: $around_type:ty),* $(,)?) = $caller:path;)*
        })?
        call { $($called:ident($($called_argument:ident: $called_type:ty),* $(,)?);)* }
    ) => {
        /// The real library, and all that we wrap or call of it.
        pub(crate) static LIBRARY: $crate::symbols::Library =
            $crate::symbols::Library { soname: $soname, symbols: &SYMBOLS };

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(usize)]
        enum Line { $($name,)* $($($around,)*)? $($called,)* Count }

        static SYMBOLS: [$crate::symbols::Symbol; Line::Count as usize] = [
            $($crate::symbols!(@line $kind $name($($type),*) $result),)*
            $($($crate::symbols!(@line $around_kind $around($($around_type),*) $result),)*)?
            $($crate::symbols::Symbol::new(stringify!($called), $crate::symbols::Kind::Called, None),)*
        ];

        $(
            /// The wrapped function of this name.
            ///
            /// # Safety
            /// As the real one's.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise is handed on.
                unsafe { $body($($argument),*) }
            }
        )*

        $($(
            /// The wrapped function of this name.
            ///
            /// # Safety
            /// As the real one's.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $around($($around_argument: $around_type),*) -> $result {
                // SAFETY: the caller's promise is handed on.
                $caller(|| unsafe { real::$around($($around_argument),*) })
            }
        )*)?

        /// The real functions. Each is safe to call as far as the real library's is.
        #[allow(non_snake_case, dead_code, clippy::too_many_arguments)]
        pub(crate) mod real {
            #[allow(unused_imports)]
            use super::*;

            $crate::symbols!(@real $result, $absent; $($name($($argument: $type),*);)*);
            $($crate::symbols!(@real $result, $absent; $($around($($around_argument: $around_type),*);)*);)?
            $crate::symbols!(@real $result, $absent; $($called($($called_argument: $called_type),*);)*);
        }
    };
    (@line $kind:ident $name:ident($($type:ty),*) $result:ty) => {
        $crate::symbols::Symbol::new(
            stringify!($name),
            $crate::symbols::Kind::$kind,
            // SAFETY: between function pointers; it is only handed out, and called as what it is.
            Some(unsafe {
                core::mem::transmute::<
                    unsafe extern "C" fn($($type),*) -> $result,
                    $crate::symbols::Function,
                >($name)
            }),
        )
    };
    (@real $result:ty, $absent:expr; $($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// The real function of this name.
            ///
            /// # Safety
            /// As the real one's.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                match LIBRARY.real(Line::$name as usize) {
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
