/* SPDX-License-Identifier: Apache-2.0 */
/* The only C++ of the tree: Google Benchmark decides how often a case runs and takes the time.
 */
#include <algorithm>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "shim.h"

namespace
{

/* Registered names begin with the case's number, which is how a run finds its case again. */
std::string registered_name(size_t i, const ng_bench &b)
{
    return std::to_string(i) + "/" + b.name;
}

/* Keeps the seconds of every repetition and prints nothing: the tables are ours. */
class collector : public benchmark::BenchmarkReporter
{
  public:
    collector(size_t n, bool wall) : seconds(n), wall_(wall) {}

    bool ReportContext(const Context &) override
    {
        return true;
    }

    void ReportRuns(const std::vector<Run> &runs) override
    {
        for (const Run &run : runs) {
            if (run.run_type != Run::RT_Iteration || run.iterations == 0)
                continue;
            const double all = wall_ ? run.real_accumulated_time : run.cpu_accumulated_time;
            seconds.at(std::stoul(run.run_name.function_name))
                .push_back(all / static_cast<double>(run.iterations));
        }
    }

    std::vector<std::vector<double>> seconds;

  private:
    bool wall_;
};

/* The interleaving is a command-line flag of the library and nothing else. */
void initialize()
{
    static bool done = false;
    if (done)
        return;
    done = true;
    std::string name = "ng-bench", flag = "--benchmark_enable_random_interleaving=true";
    char *argv[] = { &name[0], &flag[0], nullptr };
    int argc = 2;
    benchmark::Initialize(&argc, argv);
}

void summarize(ng_bench &b, std::vector<double> &seconds)
{
    if (seconds.empty())
        return;
    std::sort(seconds.begin(), seconds.end());
    const size_t n = seconds.size();
    b.seconds = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
    if (b.seconds <= 0)
        return;
    b.rate = b.items / b.seconds;
    b.spread = (seconds.back() - seconds.front()) / b.seconds;
}

} // namespace

extern "C" void ng_bench_run(ng_bench *bench, size_t n, const ng_bench_options *options)
{
    initialize();
    benchmark::ClearRegisteredBenchmarks();
    std::vector<void *> state(n, nullptr);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        ng_bench &b = bench[i];
        b.seconds = b.rate = b.spread = 0;
        state[i] = b.setup(b.arg);
        if (!state[i])
            continue;
        any = true;
        void (*const run)(void *) = b.run;
        void *const arg = state[i];
        auto *const family = benchmark::RegisterBenchmark(registered_name(i, b).c_str(),
                                                          [run, arg](benchmark::State &s) {
                                                              for (auto _ : s)
                                                                  run(arg);
                                                          });
        family->Repetitions(options->repetitions)->MinTime(options->seconds);
        if (options->wall)
            family->UseRealTime();
    }
    collector seen(n, options->wall);
    if (any)
        benchmark::RunSpecifiedBenchmarks(&seen, nullptr, ".");
    for (size_t i = 0; i < n; i++) {
        if (!state[i])
            continue;
        summarize(bench[i], seen.seconds[i]);
        bench[i].done(state[i]);
    }
}
