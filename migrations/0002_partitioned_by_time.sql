-- Written by hand: drizzle-kit knows no partitions. What the tables held is read from the logs again.
DROP TABLE "decisions";
--> statement-breakpoint
DROP TABLE "situations";
--> statement-breakpoint
CREATE TABLE "decisions" (
	"log_id" text NOT NULL,
	"seq" bigint NOT NULL,
	"time_ms" bigint NOT NULL,
	"session" text NOT NULL,
	"situation" integer NOT NULL,
	"plan_order" integer NOT NULL,
	"tokens" bigint NOT NULL,
	"layer" integer NOT NULL,
	"page" integer NOT NULL,
	"side" text NOT NULL,
	"format_from" text NOT NULL,
	"format_to" text NOT NULL,
	"accepted" boolean NOT NULL,
	"because_rule" text NOT NULL,
	"because_threshold" text NOT NULL,
	"because_measured" double precision NOT NULL,
	"because_bound" double precision NOT NULL,
	"because_unit" text NOT NULL,
	"because_origin" text NOT NULL,
	"verdict_rule" text NOT NULL,
	"verdict_threshold" text NOT NULL,
	"verdict_measured" double precision NOT NULL,
	"verdict_bound" double precision NOT NULL,
	"epsilon_from" double precision,
	"epsilon_to" double precision,
	"epsilon_now" double precision,
	"price" double precision,
	"bytes_freed" bigint NOT NULL,
	"bytes_before" bigint NOT NULL,
	"bytes_after" bigint NOT NULL,
	CONSTRAINT "decisions_log_id_seq_time_ms_pk" PRIMARY KEY("log_id","seq","time_ms")
) PARTITION BY RANGE ("time_ms");
--> statement-breakpoint
CREATE TABLE "situations" (
	"log_id" text NOT NULL,
	"seq" bigint NOT NULL,
	"time_ms" bigint NOT NULL,
	"session" text NOT NULL,
	"situation" integer NOT NULL,
	"tokens" bigint NOT NULL,
	"bytes" bigint NOT NULL,
	"budget_bytes" bigint,
	"kld_budget" double precision,
	"urgent" boolean NOT NULL,
	"low_memory" boolean NOT NULL,
	"trials" integer NOT NULL,
	"outcomes" integer NOT NULL,
	CONSTRAINT "situations_log_id_seq_time_ms_pk" PRIMARY KEY("log_id","seq","time_ms")
) PARTITION BY RANGE ("time_ms");
--> statement-breakpoint
CREATE TABLE "decisions_before_2020" PARTITION OF "decisions" FOR VALUES FROM (MINVALUE) TO (1577836800000);
--> statement-breakpoint
CREATE TABLE "decisions_from_2100" PARTITION OF "decisions" FOR VALUES FROM (4102444800000) TO (MAXVALUE);
--> statement-breakpoint
CREATE TABLE "situations_before_2020" PARTITION OF "situations" FOR VALUES FROM (MINVALUE) TO (1577836800000);
--> statement-breakpoint
CREATE TABLE "situations_from_2100" PARTITION OF "situations" FOR VALUES FROM (4102444800000) TO (MAXVALUE);
--> statement-breakpoint
CREATE TABLE "heads" (
	"log_id" text NOT NULL,
	"series" integer NOT NULL,
	"next_seq" bigint NOT NULL,
	"head_hash" text NOT NULL,
	CONSTRAINT "heads_log_id_series_pk" PRIMARY KEY("log_id","series")
);
--> statement-breakpoint
CREATE INDEX "decisions_by_from" ON "decisions" USING btree ("log_id","format_from","time_ms","seq");
--> statement-breakpoint
CREATE INDEX "decisions_by_to" ON "decisions" USING btree ("log_id","format_to","time_ms","seq");
--> statement-breakpoint
CREATE INDEX "decisions_by_rule" ON "decisions" USING btree ("log_id","because_rule");
--> statement-breakpoint
CREATE INDEX "decisions_by_threshold" ON "decisions" USING btree ("log_id","because_threshold");
--> statement-breakpoint
CREATE INDEX "decisions_by_verdict_rule" ON "decisions" USING btree ("log_id","verdict_rule");
--> statement-breakpoint
CREATE INDEX "decisions_by_verdict_threshold" ON "decisions" USING btree ("log_id","verdict_threshold");
--> statement-breakpoint
CREATE INDEX "decisions_by_epsilon_from" ON "decisions" USING btree ("log_id","epsilon_from");
--> statement-breakpoint
CREATE INDEX "decisions_by_epsilon_to" ON "decisions" USING btree ("log_id","epsilon_to");
--> statement-breakpoint
CREATE INDEX "decisions_by_epsilon_now" ON "decisions" USING btree ("log_id","epsilon_now");
--> statement-breakpoint
CREATE INDEX "decisions_by_bytes" ON "decisions" USING btree ("log_id","bytes_freed");
--> statement-breakpoint
CREATE INDEX "decisions_by_session" ON "decisions" USING btree ("log_id","session","time_ms","seq");
--> statement-breakpoint
CREATE INDEX "decisions_by_layer" ON "decisions" USING btree ("log_id","layer","time_ms","seq");
--> statement-breakpoint
CREATE INDEX "decisions_by_time" ON "decisions" USING btree ("log_id","time_ms","seq");
--> statement-breakpoint
CREATE INDEX "situations_by_session" ON "situations" USING btree ("log_id","session","seq");