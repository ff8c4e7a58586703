"""Vector code for Numba kernels: a small builder over LLVM IR, and the decorator that makes an intrinsic of it.

`@vector` turns `def name(b, *addresses)` into an intrinsic of int64 arguments; `b` is a `Builder`, and what the
function emits is inlined into the caller. Bind such intrinsics to module globals: a function that closes over one
never hits Numba's cache. Memory is reached through int64 addresses, since weights are a file mapping.
"""

import inspect

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from bankml.cpu.level import has, level

i1, i8, i16, i32, i64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
f16, f32, f64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
void = ir.VoidType()
POINTER = ir.PointerType()
CACHE_LINE = 64


def vec(element, count):
    """The type of a vector of `count` elements."""
    return ir.VectorType(element, count)


def vector(function=None, *, returns=types.void):
    """Make an intrinsic of a function over a Builder and int64 values; `returns` is the Numba type of its result."""
    if function is None:
        return lambda f: vector(f, returns=returns)

    def typing(typingctx, *arguments):
        def codegen(context, builder, signature, values):
            result = function(Builder(builder), *values)
            return context.get_dummy_value() if result is None else result

        return returns(*(types.int64 for _ in arguments)), codegen

    names = list(inspect.signature(function).parameters)[1:]
    return intrinsic(presented_as(typing, function, names))


def presented_as(typing, function, names):
    """Give a `typing(typingctx, *arguments)` the name of a function and named parameters, as Numba wants them."""
    typing.__name__, typing.__doc__, typing.__module__ = function.__name__, function.__doc__, function.__module__
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typing.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in ["typingctx", *names]])
    return typing


class Builder:
    """IR for int64 addresses, vectors and counted loops. `ir` is the llvmlite builder underneath."""

    def __init__(self, builder):
        self.ir = builder

    # ---- constants -------------------------------------------------------------------------------------------
    def int(self, value, kind=i64):
        """An integer constant."""
        return ir.Constant(kind, value)

    def splat(self, element, count, value):
        """A vector constant, the same value in each lane."""
        return ir.Constant(vec(element, count), [value] * count)

    def lanes(self, element, values):
        """A vector constant from a list."""
        values = list(values)
        return ir.Constant(vec(element, len(values)), values)

    def zero(self, element, count):
        """A vector of zeros."""
        return self.splat(element, count, 0.0 if element in (f16, f32, f64) else 0)

    # ---- addresses and memory --------------------------------------------------------------------------------
    def add(self, a, b):
        """Integer sum; either side may be a Python integer."""
        return self.ir.add(self._i64(a), self._i64(b))

    def mul(self, a, b):
        """Integer product; either side may be a Python integer."""
        return self.ir.mul(self._i64(a), self._i64(b))

    def _i64(self, value):
        return self.int(value) if isinstance(value, int) else value

    def pointer(self, address, offset=0):
        """A pointer to `address + offset` bytes."""
        base = self.ir.inttoptr(address, POINTER)
        if isinstance(offset, int) and offset == 0:
            return base
        return self.ir.gep(base, [self._i64(offset)], source_etype=i8)

    def at(self, pointer, offset):
        """A pointer `offset` bytes further on."""
        return self.ir.gep(pointer, [self._i64(offset)], source_etype=i8)

    def load(self, pointer, kind, align=1):
        """Load a value of a type, unaligned unless told."""
        return self.ir.load(pointer, typ=kind, align=align)

    def store(self, value, pointer, align=1):
        """Store a value, unaligned unless told."""
        self.ir.store(value, pointer, align=align)

    def prefetch(self, pointer, near=True):
        """Ask for a cache line, to be read once soon: into the first cache, or only into the second."""
        level_ = self.int(3 if near else 2, i32)
        self.call("llvm.prefetch.p0", void, [pointer, self.int(0, i32), level_, self.int(1, i32)])

    def table(self, name, element, values):
        """A pointer to constants that are kept beside the code; the same name means the same constants."""
        kind = ir.ArrayType(element, len(values))
        module, full = self.ir.module, f"table.{name}"
        if full not in module.globals:
            constant = ir.GlobalVariable(module, kind, full)
            constant.linkage, constant.global_constant, constant.align = "internal", True, CACHE_LINE
            constant.initializer = ir.Constant(kind, list(values))
        return module.globals[full]

    def look_up(self, table, index, element):
        """The elements of a table that i64 lanes point at, lane by lane; `element` is of 8 bytes."""
        result = ir.Constant(vec(element, index.type.count), ir.Undefined)
        for lane in range(index.type.count):
            at = self.at(table, self.ir.shl(self.element(index, lane), self.int(3)))
            result = self.ir.insert_element(result, self.load(at, element, 8), self.int(lane, i32))
        return result

    # ---- lanes -----------------------------------------------------------------------------------------------
    def call(self, name, result, arguments):
        """Call an LLVM intrinsic or a C function by name."""
        kind = ir.FunctionType(result, [a.type for a in arguments])
        return self.ir.call(cgutils.get_or_insert_function(self.ir.module, kind, name), arguments)

    def shuffle(self, a, b, index):
        """Lanes of `a` (and `b`, None for none) picked by a list of indices."""
        return self.ir.shuffle_vector(a, ir.Constant(a.type, ir.Undefined) if b is None else b, self.lanes(i32, index))

    def broadcast(self, scalar, count):
        """A scalar in every lane."""
        one = self.ir.insert_element(ir.Constant(vec(scalar.type, count), ir.Undefined), scalar, self.int(0, i32))
        return self.shuffle(one, None, [0] * count)

    def element(self, vector_, lane):
        """One lane as a scalar."""
        return self.ir.extract_element(vector_, self.int(lane, i32))

    def low(self, v):
        """The lower half of the lanes."""
        return self.shuffle(v, None, range(v.type.count // 2))

    def high(self, v):
        """The upper half of the lanes."""
        return self.shuffle(v, None, range(v.type.count // 2, v.type.count))

    def concat(self, a, b):
        """Lanes of a, then lanes of b."""
        return self.shuffle(a, b, range(2 * a.type.count))

    def cast(self, v, kind):
        """The same bits as another type."""
        return self.ir.bitcast(v, kind)

    # ---- arithmetic ------------------------------------------------------------------------------------------
    def fma(self, a, b, c):
        """a*b+c with one rounding, exactly at every level; slow at the generic one."""
        kind = a.type
        element, suffix = (kind.element, f"v{kind.count}") if isinstance(kind, ir.VectorType) else (kind, "")
        if suffix and element == f32 and level() == "generic":
            return self._fma_in_double(a, b, c)
        return self.call(f"llvm.fma.{suffix}{'f32' if element == f32 else 'f64'}", kind, [a, b, c])

    def _fma_in_double(self, a, b, c):
        """The product is exact in double; the sum is rounded to odd there, and then once more to float32."""
        build, count = self.ir, a.type.count
        wide, bits = vec(f64, count), vec(i64, count)
        product = build.fmul(build.fpext(a, wide), build.fpext(b, wide))
        addend = build.fpext(c, wide)
        total = build.fadd(product, addend)
        part = build.fsub(total, product)
        error = build.fadd(build.fsub(product, build.fsub(total, part)), build.fsub(addend, part))
        word, error_word = self.cast(total, bits), self.cast(error, bits)
        # what was rounded off points away from zero or towards it: one step that way, unless the last bit is set
        differ = build.ashr(build.xor(word, error_word), self.splat(i64, count, 63))
        step = build.or_(differ, self.splat(i64, count, 1))  # -1 where the signs differ, else 1
        even = build.icmp_unsigned("==", build.and_(word, self.splat(i64, count, 1)), self.zero(i64, count))
        inexact = build.and_(build.fcmp_ordered("!=", error, self.zero(f64, count)), even)
        odd = build.add(word, build.select(inexact, step, self.zero(i64, count)))
        return build.fptrunc(self.cast(odd, wide), a.type)

    def fma_exact_product(self, a, b, c):
        """a*b+c where a*b is known to be exact in float32, as it is of two halves: then fused and unfused agree."""
        return self.fma_or_not(a, b, c)

    def fma_or_not(self, a, b, c):
        """a*b+c, fused where there is an instruction for it: for sums in which it is known not to matter."""
        if level() == "generic":
            return self.ir.fadd(self.ir.fmul(a, b), c)
        return self.fma(a, b, c)

    def to_f32(self, v):
        """Signed integer lanes as float32."""
        return self.ir.sitofp(v, vec(f32, v.type.count))

    def half_to_f32(self, bits):
        """float32 of half-precision bits (i16 or a vector of i16), exact, denormals too."""
        wide = isinstance(bits.type, ir.VectorType)
        if level() == "generic":
            return self._half_to_f32_by_integers(bits)
        half, single = (vec(f16, bits.type.count), vec(f32, bits.type.count)) if wide else (f16, f32)
        return self.ir.fpext(self.cast(bits, half), single)

    def f32_to_half(self, v):
        """Half-precision bits of float32 (a scalar or lanes), rounded to nearest even."""
        wide = isinstance(v.type, ir.VectorType)
        if level() == "generic":
            return self._f32_to_half_by_integers(v) if wide else self.element(self.f32_to_half(self.broadcast(v, 4)), 0)
        half, bits = (vec(f16, v.type.count), vec(i16, v.type.count)) if wide else (f16, i16)
        return self.cast(self.ir.fptrunc(v, half), bits)

    def _f32_to_half_by_integers(self, v):
        """Normal halves by a rounding bias on the bits, denormal ones by adding 0.5, whose last bit is theirs."""
        build, count = self.ir, v.type.count
        words = vec(i32, count)

        def const(value):
            return self.splat(i32, count, value)

        word = self.cast(v, words)
        magnitude = build.and_(word, const(0x7FFFFFFF))
        odd = build.and_(build.lshr(magnitude, const(13)), const(1))
        normal = build.lshr(build.add(build.add(magnitude, const(0xC8000FFF)), odd), const(13))
        shifted = build.fadd(self.cast(magnitude, v.type), self.splat(f32, count, 0.5))
        denormal = build.sub(self.cast(shifted, words), const(0x3F000000))
        nan = build.or_(const(0x7E00), build.and_(build.lshr(magnitude, const(13)), const(0x3FF)))
        is_nan = build.icmp_signed(">", magnitude, const(0x7F800000))
        large = build.select(is_nan, nan, const(0x7C00))
        result = build.select(build.icmp_signed("<", magnitude, const(0x38800000)), denormal, normal)
        result = build.select(build.icmp_signed(">=", magnitude, const(0x477FF000)), large, result)
        sign = build.and_(build.lshr(word, const(16)), const(0x8000))
        return build.trunc(build.or_(sign, build.and_(result, const(0x7FFF))), vec(i16, count))

    def _half_to_f32_by_integers(self, bits):
        """Shift the half into float32 position and scale by 2^112; infinities and NaNs get their exponent back."""
        wide = isinstance(bits.type, ir.VectorType)
        count = bits.type.count if wide else 1
        integer = vec(i32, count) if wide else i32
        single = vec(f32, count) if wide else f32

        def constant(kind, value):
            return ir.Constant(kind, [value] * count if wide else value)

        b = self.ir
        x = b.zext(bits, integer)
        sign = b.shl(b.and_(x, constant(integer, 0x8000)), constant(integer, 16))
        body = b.shl(b.and_(x, constant(integer, 0x7FFF)), constant(integer, 13))
        finite = b.bitcast(b.fmul(b.bitcast(body, single), constant(single, 2.0**112)), integer)
        special = b.or_(body, constant(integer, 0x7F800000))
        is_special = b.icmp_unsigned(">=", body, constant(integer, 0x7C00 << 13))
        return b.bitcast(b.or_(sign, b.select(is_special, special, finite)), single)

    def dot_u8_i8(self, total, unsigned, signed):
        """total + sums of 4 adjacent products u8*i8 per 32-bit lane; |pair sums| must stay below 2^15."""
        count = total.type.count
        u, s = self.cast(unsigned, vec(i8, 4 * count)), self.cast(signed, vec(i8, 4 * count))
        if has("avx512_vnni") or has("avx_vnni"):  # one LLVM name for both encodings
            return self.call(f"llvm.x86.avx512.vpdpbusd.{32 * count}", total.type, [total, u, s])
        pairs, words = vec(i16, 2 * count), vec(i32, count)
        name = {8: ("avx2.pmadd.ub.sw", "avx2.pmadd.wd"), 16: ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512")}[count]
        half = self.call(f"llvm.x86.{name[0]}", pairs, [u, s])
        return self.ir.add(total, self.call(f"llvm.x86.{name[1]}", words, [half, self.splat(i16, 2 * count, 1)]))

    # ---- control ---------------------------------------------------------------------------------------------
    def loop(self, count, carried, body):
        """`for i in range(count): carried = body(i, carried)`; returns what is carried out."""
        b = self.ir
        entry = b.block
        head, inside, done = (b.append_basic_block(name) for name in ("head", "inside", "done"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(i64)
        index.add_incoming(self.int(0), entry)
        values = []
        for value in carried:
            phi = b.phi(value.type)
            phi.add_incoming(value, entry)
            values.append(phi)
        b.cbranch(b.icmp_signed("<", index, self._i64(count)), inside, done)
        b.position_at_end(inside)
        out = body(index, values)
        index.add_incoming(self.add(index, 1), b.block)
        for phi, value in zip(values, out, strict=True):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(done)
        return values
