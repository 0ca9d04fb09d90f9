# Modules made of one set of objects. Run by scripts/build-native.mjs, which names the modules that it wants, and never by npm itself (npm would
# build a binding.gyp in the repository root on every install).
#   palimpsest            the product, for this machine
#   palimpsest_portable   the product for other machines (scripts/prebuild.mjs): the C++ runtime is linked in and symbols are stripped
#   kernels_test          single kernels on a chosen instruction set, and the thread pool, for tests only (test_*.cc)
#   cache_test            the product with allocations that fail when a test asks for it (test_allocations.cc)
#   bench_stream          how fast this machine reads memory, for benches only (stream.cc)
# -Wno-uninitialized: gcc 12 warns about its own AVX-512 headers.
# gyp has no flags per file, so each instruction set is a static library built from the same source (kernels/hot.cc), and so are the cold kernels of those that share them
# (kernels/cold.cc).
{
  'variables': {
    # The instruction sets that are compiled beside the scalar kernels, of those that the processor has: all, unless a build names some.
    'isas%': 'avx2,avx2vnni,avx512vnni,neon,neondot,neoni8mm',
    # Two of the product's files are compiled again for cache_test, since they ask whether an allocation is to fail.
    'asking_sources': ['addon.cc', 'cache/pool.cc'],
    # What checks and translates arguments, and what keeps books of pages, is compiled for size, to half of it: what a call of it leads to takes far longer.
    'border_sources': ['cache/heap.cc', 'cache/hold.cc', 'cache/layer.cc', 'cache/moves.cc', 'cache/pages.cc', 'cache/sliding.cc', 'cache/stored.cc', '<!@(node -p "require(\'fs\').readdirSync(\'.\').filter((f) => f.startsWith(\'addon_\') && f.endsWith(\'.cc\')).join(\' \')")'],
    # Of these, what is named above is left out (sources!).
    'all_sources': ['<!@(node -p "[\'cache\', \'log\'].flatMap((dir) => require(\'fs\').readdirSync(dir).filter((f) => f.endsWith(\'.cc\')).map((f) => dir + \'/\' + f)).join(\' \')")'],
    # Kernels throw nothing, so they need no tables by which a stack is unwound.
    'kernel_flags': ['-fno-exceptions', '-fno-asynchronous-unwind-tables'],
    # The sanitizers of a Debug build.
    'sanitizer%': 'address,undefined',
  },
  'conditions': [
    ['target_arch=="x64"', {
      'targets': [
        {
          'target_name': 'kernels_avx2', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=avx2', 'PALIMPSEST_COLD=avx2'],
          'cflags': ['<@(kernel_flags)', '-mavx2', '-mfma', '-mf16c'],
        },
        {
          'target_name': 'kernels_avx2vnni', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=avx2vnni', 'PALIMPSEST_COLD=avx2'],
          'cflags': ['<@(kernel_flags)', '-mavx2', '-mfma', '-mf16c', '-mavxvnni'],
        },
        {
          'target_name': 'kernels_cold_avx2', 'type': 'static_library', 'sources': ['kernels/cold.cc'],
          'defines': ['PALIMPSEST_COLD=avx2'],
          'cflags': ['<@(kernel_flags)', '-mavx2', '-mfma', '-mf16c'],
        },
        {
          'target_name': 'kernels_avx512vnni', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=avx512vnni', 'PALIMPSEST_COLD=avx512'],
          'cflags': ['<@(kernel_flags)', '-mavx2', '-mfma', '-mf16c', '-mavx512f', '-mavx512bw', '-mavx512dq', '-mavx512vl', '-mavx512vnni', '-mprefer-vector-width=512', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
        },
        {
          'target_name': 'kernels_cold_avx512', 'type': 'static_library', 'sources': ['kernels/cold.cc'],
          'defines': ['PALIMPSEST_COLD=avx512'],
          'cflags': ['<@(kernel_flags)', '-mavx2', '-mfma', '-mf16c', '-mavx512f', '-mavx512bw', '-mavx512dq', '-mavx512vl', '-mprefer-vector-width=512', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
        },
      ],
    }],
    ['target_arch=="arm64"', {
      'targets': [
        {
          'target_name': 'kernels_neoni8mm', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=neoni8mm', 'PALIMPSEST_COLD=neon'],
          'cflags': ['<@(kernel_flags)', '-march=armv8.2-a+dotprod+i8mm'],
        },
        {
          'target_name': 'kernels_neondot', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=neondot', 'PALIMPSEST_COLD=neon'],
          'cflags': ['<@(kernel_flags)', '-march=armv8.2-a+dotprod'],
        },
        {
          'target_name': 'kernels_neon', 'type': 'static_library', 'sources': ['kernels/hot.cc'],
          'defines': ['PALIMPSEST_ISA=neon', 'PALIMPSEST_COLD=neon'],
          'cflags': ['<@(kernel_flags)'],
        },
        {
          'target_name': 'kernels_cold_neon', 'type': 'static_library', 'sources': ['kernels/cold.cc'],
          'defines': ['PALIMPSEST_COLD=neon'],
          'cflags': ['<@(kernel_flags)'],
        },
      ],
    }],
  ],
  'target_defaults': {
    'default_configuration': 'Release',
    'include_dirs': ['<!(node -p "require(\'node-addon-api\').include_dir")', 'kernels'],
    'defines': ['NAPI_VERSION=8', 'NODE_ADDON_API_CPP_EXCEPTIONS', 'NODE_ADDON_API_DISABLE_DEPRECATED', 'NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS'],
    'cflags': ['-fPIC', '-O3', '-ffunction-sections', '-fdata-sections', '-fvisibility=hidden', '-ffp-contract=off', '-fno-math-errno', '-fno-trapping-math', '-Wall', '-Wextra', '-Wno-psabi', '-Wno-unused-function'],
    'cflags_cc': ['-std=gnu++20'],
    'configurations': {
      # A page that a kernel keeps on the stack is a fault: native/kernels/kernels.h, Workspace. With sanitizers frames are larger, and so are stacks.
      'Release': {'cflags': ['-Werror=frame-larger-than=32768']},
      # Every access of every kernel is checked, by a call (the --param) instead of inline instructions. The checks left out are those that the
      # address sanitizer makes anyway (null, object-size) and one that would be repeated for every load through a computed address
      # (pointer-overflow). With everything inline gcc takes seven times as long: 210 s instead of 30 s for one instruction set.
      'Debug': {
        'cflags': ['-g1', '-O1', '-fno-omit-frame-pointer', '-fsanitize=<(sanitizer)', '-fno-sanitize=null,object-size,pointer-overflow', '-fno-sanitize-recover=undefined', '--param', 'asan-instrumentation-with-call-threshold=0'],
        'ldflags': ['-fsanitize=<(sanitizer)'],
        'defines': ['PALIMPSEST_DEBUG'],
      },
    },
  },
  'targets': [
    {
      'target_name': 'kernels_common', 'type': 'static_library',
      'sources': ['kernels/dispatch.cc', 'formats/rot/worth.cc'],
      'defines': ['PALIMPSEST_NAMES_ISAS'],
      'conditions': [
        ['"avx2" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_AVX2'] }],
        ['"avx2vnni" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_AVX2VNNI'] }],
        ['"avx512vnni" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_AVX512VNNI'] }],
        ['"neon" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_NEON'] }],
        ['"neondot" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_NEONDOT'] }],
        ['"neoni8mm" in isas.split(",")', { 'defines': ['PALIMPSEST_HAS_NEONI8MM'] }],
      ],
    },
    {
      'target_name': 'kernels_scalar', 'type': 'static_library', 'sources': ['kernels/hot.cc', 'kernels/cold.cc'],
      'defines': ['PALIMPSEST_ISA=scalar', 'PALIMPSEST_COLD=scalar'],
      # It is what others are held to, and for processors from before 2013: it need not be fast, but small and soon compiled.
      'cflags!': ['-O3'],
      'cflags': ['<@(kernel_flags)', '-O1'],
    },
    {
      'target_name': 'kernels', 'type': 'none',
      'dependencies': ['kernels_common', 'kernels_scalar'],
      'conditions': [
        ['target_arch=="x64" and "avx2" in isas.split(",")', { 'dependencies': ['kernels_avx2', 'kernels_cold_avx2'] }],
        ['target_arch=="x64" and "avx2vnni" in isas.split(",")', { 'dependencies': ['kernels_avx2vnni', 'kernels_cold_avx2'] }],
        ['target_arch=="x64" and "avx512vnni" in isas.split(",")', { 'dependencies': ['kernels_avx512vnni', 'kernels_cold_avx512'] }],
        ['target_arch=="arm64" and "neon" in isas.split(",")', { 'dependencies': ['kernels_neon', 'kernels_cold_neon'] }],
        ['target_arch=="arm64" and "neondot" in isas.split(",")', { 'dependencies': ['kernels_neondot', 'kernels_cold_neon'] }],
        ['target_arch=="arm64" and "neoni8mm" in isas.split(",")', { 'dependencies': ['kernels_neoni8mm', 'kernels_cold_neon'] }],
      ],
    },
    {
      'target_name': 'cache', 'type': 'static_library', 'sources': ['<@(all_sources)'], 'sources!': ['<@(asking_sources)', '<@(border_sources)'],
      'cflags': ['-pthread'],
    },
    {
      'target_name': 'border', 'type': 'static_library', 'sources': ['<@(border_sources)'],
      'cflags': ['-pthread', '-Os'],
    },
    {
      'target_name': 'palimpsest', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['<@(asking_sources)'],
      'dependencies': ['border', 'cache', 'kernels'],
      'cflags': ['-pthread', '-Os'],
      'ldflags': ['-pthread', '-Wl,--gc-sections'],
    },
    {
      'target_name': 'palimpsest_portable', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['<@(asking_sources)', 'portable/old_glibc.cc'],
      'dependencies': ['border', 'cache', 'kernels'],
      'cflags': ['-pthread', '-Os'],
      'ldflags': ['-pthread', '-static-libstdc++', '-Wl,--version-script=<(module_root_dir)/portable/exports.map', '-Wl,--gc-sections', '-s', '<!@(cat portable/wrapped.flags)'],
    },
    {
      'target_name': 'kernels_test', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['test_binding.cc', 'test_binding_attend.cc', 'test_binding_dense.cc', 'test_canaries.cc', 'test_threads.cc'],
      'dependencies': ['cache', 'kernels'],
      'cflags': ['-pthread'],
      'ldflags': ['-pthread'],
    },
    {
      'target_name': 'cache_test', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['<@(asking_sources)', 'test_allocations.cc'],
      'dependencies': ['border', 'cache', 'kernels'],
      'defines': ['PALIMPSEST_TEST_ALLOCATIONS'],
      'cflags': ['-pthread', '-Os'],
      'ldflags': ['-pthread', '-Wl,-Bsymbolic'],
    },
    {
      'target_name': 'bench_stream', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['stream.cc'],
      'cflags': ['-pthread', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
      'ldflags': ['-pthread'],
    },
  ],
}
