// SPDX-License-Identifier: Apache-2.0
// The unit beside the oracle, and every function of the package once. Ends in a line
// "tb: N vectors, M differ, F of the package failed".
module tb;
  import ng_dpi::*;

  bit [127:0] a, b;
  bit [7:0] a_scale, b_scale;
  bit [31:0] d;
  mxfp4_dot unit (.*);

  int failed = 0;
  task automatic check(input bit ok, input string what, input chandle o);
    if (!ok) begin
      failed++;
      $display("FAIL %s: %s", what, ng_dpi_message(o));
    end
  endtask

  // What the oracle did, where the unit gives something else.
  task automatic explain(input chandle o, input int unsigned want);
    int n;
    $display("differs: a %h scale %h, b %h scale %h: got %h (%g), want %h (%g)", a, a_scale, b,
             b_scale, d, ng_dpi_real(NG_F32, d), want, ng_dpi_real(NG_F32, want));
    n = ng_dpi_trace(o, 0, 0);
    for (int i = 0; i < n; i++) $display("  %s", ng_dpi_step_text(o, i));
  endtask

  task automatic vectors(output int n, output int differ);
    chandle o;
    int unsigned want;
    o = ng_dpi_open("ocp-mx");
    check(ng_dpi_status(o) == NG_OK, "open", o);
    n = 0;
    differ = 0;
    repeat (10000) begin
      a = {$urandom, $urandom, $urandom, $urandom};
      b = {$urandom, $urandom, $urandom, $urandom};
      a_scale = 8'(100 + $urandom % 50);
      b_scale = $urandom % 100 == 0 ? 8'd255 : 8'(100 + $urandom % 50);
      #1;
      check(ng_dpi_dot(o, 32, NG_E2M1, ng_line_t'(a), NG_E2M1, ng_line_t'(b), NG_E8M0, 32,
                       ng_scales_t'(a_scale), ng_scales_t'(b_scale), NG_FORMAT_NONE, 0, NG_F32,
                       want) == NG_OK, "dot", o);
      n++;
      if (d != want) begin
        if (differ == 0) explain(o, want);
        differ++;
      end
    end
    ng_dpi_close(o);
  endtask

  // Two rows by two columns of bf16: 1 2 / 3 4 times 5 6 / 7 8, plus 1.
  task automatic matrices();
    chandle o;
    int kind, index, k0, k1;
    real value;
    int unsigned code[4] = '{32'h41A00000, 32'h41B80000, 32'h42300000, 32'h424C0000};
    o = ng_dpi_open("trn3");
    check(ng_dpi_matrices(o, 2, 2, 2, NG_BF16, NG_BF16, NG_FORMAT_NONE, 0, NG_F32, NG_F32) ==
          NG_OK, "matrices", o);
    check(ng_dpi_put_line(o, NG_DPI_A, 0, 0, 2, ng_line_t'(32'h4000_3F80)) == NG_OK, "put_line", o);
    check(ng_dpi_put_line(o, NG_DPI_A, 1, 0, 2, ng_line_t'(32'h4080_4040)) == NG_OK, "put_line", o);
    check(ng_dpi_put(o, NG_DPI_B, 0, 0, 'h40A0) == NG_OK, "put", o);
    check(ng_dpi_put(o, NG_DPI_B, 0, 1, 'h40C0) == NG_OK, "put", o);
    check(ng_dpi_put(o, NG_DPI_B, 1, 0, 'h40E0) == NG_OK, "put", o);
    check(ng_dpi_put(o, NG_DPI_B, 1, 1, 'h4100) == NG_OK, "put", o);
    for (int i = 0; i < 4; i++)
      check(ng_dpi_put(o, NG_DPI_C, i / 2, i % 2, 'h3F800000) == NG_OK, "put c", o);
    check(ng_dpi_put(o, NG_DPI_C, 2, 0, 0) == NG_ERR_SHAPE, "a third row", o);
    check(ng_dpi_multiply(o) == NG_OK, "multiply", o);
    for (int i = 0; i < 4; i++)
      check(ng_dpi_get(o, i / 2, i % 2) == code[i], $sformatf("element %0d", i), o);
    check(ng_dpi_trace(o, 1, 1) > 0, "trace", o);
    check(ng_dpi_step(o, 0, kind, index, k0, k1, value) == NG_OK && kind == NG_TRACE_CHAIN &&
          index == 0 && k0 == 0 && value == 50.0, "step", o);
    check(ng_dpi_step_text(o, 0) == "chain 0 of k 0 to 1: 50 (0x1.9p+5)", ng_dpi_step_text(o, 0),
          o);
    ng_dpi_close(o);
  endtask

  task automatic others();
    chandle o;
    int unsigned x, scale_of_all;
    ng_line_t ones, dst;
    ng_scales_t scale;
    o = ng_dpi_open("no such device");
    check(ng_dpi_status(o) == NG_ERR_PROFILE && ng_dpi_message(o) != "", "an unknown profile", o);
    ng_dpi_close(o);
    o = ng_dpi_open("trn3");
    check(ng_dpi_output(o, NG_ROUND_TOWARD_ZERO, NG_OVERFLOW_SATURATE) == NG_OK, "output", o);
    check(ng_dpi_convert(o, NG_F32, 'h3F8FFFFF, NG_E4M3FN, x) == NG_OK && x == 'h38, "convert", o);
    check(ng_dpi_output(o, NG_ROUND_STOCHASTIC, NG_OVERFLOW_SATURATE) == NG_OK, "output", o);
    check(ng_dpi_word(o, 0, 'hFFFFFFFF) == NG_OK, "word", o);
    check(ng_dpi_convert(o, NG_F32, 'h3F8FFFFF, NG_E4M3FN, x) == NG_OK && x == 'h39, "convert", o);
    check(ng_dpi_output(o, NG_ROUND_TIES_TO_EVEN, NG_OVERFLOW_INF) == NG_OK, "output", o);
    check(ng_dpi_accumulate(o, NG_BF16) == NG_OK && ng_dpi_accumulate(o, NG_FORMAT_NONE) == NG_OK,
          "accumulate", o);
    check(ng_dpi_double_row(o, 1) == NG_OK, "double_row", o);
    check(ng_dpi_set(o, "double_row", "lane_sum", "chain") == NG_OK, "set", o);
    for (int i = 0; i < 128; i++) ones[32*i+:32] = 32'h3F800000;
    check(ng_dpi_quantize(o, 64, NG_F32, ones, NG_E2M1, NG_E8M0, 32, NG_SCALE_FLOOR,
                          NG_BLOCK_SPECIAL_ELEMENT, 0, dst, scale, scale_of_all) == NG_OK &&
          dst[255:0] == {64{4'h6}} && dst[511:256] == 0 && scale == 512'h7D7D && scale_of_all == 0,
          "quantize", o);
    // 16 ones of e4m3fn, twice
    ones = 0;
    for (int i = 0; i < 16; i++) ones[8*i+:8] = 8'h38;
    check(ng_dot(o, 16, NG_E4M3FN, ones, ones, NG_F32, x) == NG_OK && x == 'h41800000, "ng_dot", o);
    ng_dpi_close(o);
  endtask

  initial begin
    int n, differ;
    vectors(n, differ);
    matrices();
    others();
    $display("tb: %0d vectors, %0d differ, %0d of the package failed", n, differ, failed);
    $finish;
  end
endmodule
