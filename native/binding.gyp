# Three addons from one set of kernels, and one that measures memory. Run by scripts/build-native.mjs, never by npm itself (npm would build a
# binding.gyp in the repository root on every install).
#   palimpsest     the cache (addon*.cc, cache/*.cc, log/*.cc)
#   kernels_test   single kernels on a chosen instruction set, and the thread pool, for tests only (test_*.cc)
#   cache_test     the cache with allocations that fail when a test asks for it (test_allocations.cc)
#   bench_stream   how fast this machine reads memory, for benches only (stream.cc)
# -Wno-uninitialized: gcc 12 warns about its own AVX-512 headers.
# gyp has no flags per file, so each instruction set is a static library built from the same source.
{
  'variables': {
    # The published package contains no tests and no benches.
    'kernels_test_type%': '<!(node -p "require(\'fs\').existsSync(\'test_binding.cc\') ? \'loadable_module\' : \'none\'")',
    'bench_stream_type%': '<!(node -p "require(\'fs\').existsSync(\'stream.cc\') ? \'loadable_module\' : \'none\'")',
    'kernel_libraries%': ['kernels_common', 'kernels_scalar'],
    'cache_sources': ['<!@(node -p "require(\'fs\').readdirSync(\'.\').filter((f) => f.startsWith(\'addon\') && f.endsWith(\'.cc\')).concat([\'cache\', \'log\'].flatMap((dir) => require(\'fs\').readdirSync(dir).filter((f) => f.endsWith(\'.cc\')).map((f) => dir + \'/\' + f))).join(\' \')")'],
    # The sanitizers of a Debug build.
    'sanitizer%': 'address,undefined',
    # 1 builds for other machines (scripts/prebuild.mjs): the C++ runtime is linked in and symbols are stripped.
    'portable%': 0,
  },
  'conditions': [
    ['target_arch=="x64"', {
      'variables': { 'kernel_libraries': ['kernels_common', 'kernels_scalar', 'kernels_avx2', 'kernels_avx2vnni', 'kernels_avx512', 'kernels_avx512vnni'] },
      'targets': [
        {
          'target_name': 'kernels_avx2', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=avx2'],
          'cflags': ['-mavx2', '-mfma', '-mf16c'],
        },
        {
          'target_name': 'kernels_avx2vnni', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=avx2vnni'],
          'cflags': ['-mavx2', '-mfma', '-mf16c', '-mavxvnni'],
        },
        {
          'target_name': 'kernels_avx512', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=avx512'],
          'cflags': ['-mavx2', '-mfma', '-mf16c', '-mavx512f', '-mavx512bw', '-mavx512dq', '-mavx512vl', '-mprefer-vector-width=512', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
        },
        {
          'target_name': 'kernels_avx512vnni', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=avx512vnni'],
          'cflags': ['-mavx2', '-mfma', '-mf16c', '-mavx512f', '-mavx512bw', '-mavx512dq', '-mavx512vl', '-mavx512vnni', '-mprefer-vector-width=512', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
        },
      ],
    }],
    ['target_arch=="arm64"', {
      'variables': { 'kernel_libraries': ['kernels_common', 'kernels_scalar', 'kernels_neon', 'kernels_neondot'] },
      'targets': [
        {
          'target_name': 'kernels_neondot', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=neondot'],
          'cflags': ['-march=armv8.2-a+dotprod'],
        },
        {
          'target_name': 'kernels_neon', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
          'defines': ['PALIMPSEST_ISA=neon'],
        },
      ],
    }],
  ],
  'target_defaults': {
    'default_configuration': 'Release',
    'include_dirs': ['<!(node -p "require(\'node-addon-api\').include_dir")', 'kernels'],
    'defines': ['NAPI_VERSION=8', 'NODE_ADDON_API_CPP_EXCEPTIONS', 'NODE_ADDON_API_DISABLE_DEPRECATED', 'NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS'],
    'cflags': ['-fPIC', '-O3', '-fvisibility=hidden', '-ffp-contract=off', '-fno-math-errno', '-fno-trapping-math', '-Wall', '-Wextra', '-Wno-psabi', '-Wno-unused-function'],
    # Remove flags that the common.gypi of installed headers may have set.
    'cflags!': ['-fno-exceptions'],
    'cflags_cc!': ['-fno-exceptions', '-fno-rtti', '-std=gnu++17'],
    'cflags_cc': ['-std=gnu++20', '-fexceptions'],
    'configurations': {
      'Release': {},
      # Every access of every kernel is checked, by a call (the --param) instead of inline instructions. The checks left out are those that the
      # address sanitizer makes anyway (null, object-size) and one that would be repeated for every load through a computed address
      # (pointer-overflow). With everything inline gcc takes seven times as long: 210 s instead of 30 s for one instruction set.
      'Debug': {
        'cflags': ['-g1', '-O1', '-fno-omit-frame-pointer', '-fsanitize=<(sanitizer)', '-fno-sanitize=null,object-size,pointer-overflow', '-fno-sanitize-recover=undefined', '--param', 'asan-instrumentation-with-call-threshold=0'],
        'ldflags': ['-fsanitize=<(sanitizer)'],
        'defines': ['PALIMPSEST_DEBUG'],
      },
    },
    'conditions': [
      ['portable==1', {
        'cflags': ['-ffunction-sections', '-fdata-sections'],
      }],
    ],
  },
  'targets': [
    {
      'target_name': 'kernels_common', 'type': 'static_library',
      'sources': ['kernels/dispatch.cc', 'kernels/rot.cc'],
    },
    {
      'target_name': 'kernels_scalar', 'type': 'static_library', 'sources': ['kernels/isa.cc'],
      'defines': ['PALIMPSEST_ISA=scalar'],
    },
    {
      'target_name': 'palimpsest', 'type': 'loadable_module', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['<@(cache_sources)'],
      'dependencies': ['<@(kernel_libraries)'],
      'cflags': ['-pthread'],
      'ldflags': ['-pthread'],
      'conditions': [
        ['portable==1', {
          'sources': ['portable/old_glibc.cc'],
          'ldflags': ['-static-libstdc++', '-Wl,--version-script=<(module_root_dir)/portable/exports.map', '-Wl,--gc-sections', '-s', '<!@(cat portable/wrapped.flags)'],
        }],
      ],
    },
    {
      'target_name': 'kernels_test', 'type': '<(kernels_test_type)', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['test_binding.cc', 'test_binding_attend.cc', 'test_binding_dense.cc', 'test_canaries.cc', 'test_threads.cc', 'cache/threads.cc', 'cache/rows.cc', 'cache/dense_pack.cc'],
      'dependencies': ['<@(kernel_libraries)'],
      'cflags': ['-pthread'],
      'ldflags': ['-pthread'],
    },
    {
      'target_name': 'cache_test', 'type': '<(kernels_test_type)', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['<@(cache_sources)', 'test_allocations.cc'],
      'dependencies': ['<@(kernel_libraries)'],
      'defines': ['PALIMPSEST_TEST_ALLOCATIONS'],
      'cflags': ['-pthread'],
      'ldflags': ['-pthread', '-Wl,-Bsymbolic'],
    },
    {
      'target_name': 'bench_stream', 'type': '<(bench_stream_type)', 'product_extension': 'node', 'product_prefix': '',
      'sources': ['stream.cc'],
      'cflags': ['-pthread', '-Wno-uninitialized', '-Wno-maybe-uninitialized'],
      'ldflags': ['-pthread'],
    },
  ],
}
