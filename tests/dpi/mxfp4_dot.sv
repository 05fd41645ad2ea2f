// SPDX-License-Identifier: Apache-2.0
// A unit under test: the dot product of two blocks of 32 E2M1 elements under E8M0 scales, into
// FP32. The sum is exact: twice an element is an integer of at most 12. +define+FAULT makes
// the table wrong in one place.
module mxfp4_dot (
    input  bit [127:0] a, b,
    input  bit [7:0]   a_scale, b_scale,
    output bit [31:0]  d
);
  function automatic int twice(input bit [3:0] code);
    int m;
    case (code[2:0])
      0: m = 0;
      1: m = 1;
      2: m = 2;
      3: m = 3;
      4: m = 4;
      5: m = 6;
`ifdef FAULT
      6: m = 9;
`else
      6: m = 8;
`endif
      default: m = 12;
    endcase
    return code[3] ? -m : m;
  endfunction

  always_comb begin
    int sum, magnitude, top, field;
    bit [31:0] significand;
    sum = 0;
    for (int i = 0; i < 32; i++) sum += twice(a[4*i+:4]) * twice(b[4*i+:4]);
    magnitude = sum < 0 ? -sum : sum;
    top = 0;
    for (int i = 0; i < 31; i++) if (magnitude[i]) top = i;
    // the sum is in quarters, each scale has a bias of 127
    field = top - 2 + int'(a_scale) - 127 + int'(b_scale) - 127 + 127;
    significand = magnitude << (23 - top);
    if (a_scale == 255 || b_scale == 255) d = 32'h7FC00000;
    else if (magnitude == 0) d = 0;
    else d = {sum < 0, field[7:0], significand[22:0]};
  end
endmodule
