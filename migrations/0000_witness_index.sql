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
	CONSTRAINT "decisions_log_id_seq_pk" PRIMARY KEY("log_id","seq")
);
--> statement-breakpoint
CREATE TABLE "experiences" (
	"log_id" text NOT NULL,
	"seq" bigint NOT NULL,
	"session" text NOT NULL,
	"model_digest" text NOT NULL,
	"family" text NOT NULL,
	"fingerprint" double precision[] NOT NULL,
	"price_threshold" double precision NOT NULL,
	"gains_k" double precision[] NOT NULL,
	"gains_v" double precision[] NOT NULL,
	"c" double precision NOT NULL,
	"effective_bits" double precision NOT NULL,
	"mean_kld" double precision,
	"predicted_kld" double precision NOT NULL,
	"tokens" bigint NOT NULL,
	CONSTRAINT "experiences_log_id_seq_pk" PRIMARY KEY("log_id","seq")
);
--> statement-breakpoint
CREATE TABLE "index_state" (
	"log_id" text PRIMARY KEY NOT NULL,
	"next_seq" bigint NOT NULL,
	"head_hash" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sessions" (
	"log_id" text NOT NULL,
	"session" text NOT NULL,
	"seq" bigint NOT NULL,
	"opened_ms" bigint NOT NULL,
	"closed_ms" bigint,
	"model" text NOT NULL,
	"model_digest" text NOT NULL,
	"policy" text NOT NULL,
	"tokens" bigint NOT NULL,
	"kv_bytes" bigint NOT NULL,
	"kv_bytes_f16" bigint,
	"mean_kld" double precision,
	"decisions" integer NOT NULL,
	"refused" integer NOT NULL,
	"ending" text NOT NULL,
	CONSTRAINT "sessions_log_id_session_pk" PRIMARY KEY("log_id","session")
);
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
	CONSTRAINT "situations_log_id_seq_pk" PRIMARY KEY("log_id","seq")
);
--> statement-breakpoint
CREATE INDEX "decisions_by_session" ON "decisions" USING btree ("log_id","session","seq");--> statement-breakpoint
CREATE INDEX "decisions_by_layer" ON "decisions" USING btree ("log_id","layer","seq");--> statement-breakpoint
CREATE INDEX "decisions_by_time" ON "decisions" USING btree ("log_id","time_ms");--> statement-breakpoint
CREATE INDEX "experiences_by_model" ON "experiences" USING btree ("log_id","model_digest");--> statement-breakpoint
CREATE INDEX "sessions_by_time" ON "sessions" USING btree ("log_id","opened_ms");--> statement-breakpoint
CREATE INDEX "situations_by_session" ON "situations" USING btree ("log_id","session","seq");